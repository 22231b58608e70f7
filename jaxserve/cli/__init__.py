"""The command line: `jaxserve` and its subcommands, a module each."""
