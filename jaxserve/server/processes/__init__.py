"""Starting, draining and ending the server and its API worker processes."""
