"""Starting and stopping servers: one process, several with --api-workers, or for a batch file."""
