"""The command line: `jaxserve serve | generate | chat | pull`."""
