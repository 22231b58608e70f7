"""The command line: `jaxserve serve | generate | chat | run-batch | bench | plan | pull | ...`."""
