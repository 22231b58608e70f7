"""The command line: `jaxserve serve | generate | chat | run-batch | pull | convert`."""
