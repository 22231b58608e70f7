"""The endpoints: a file or folder for each family, what they share, and the table of routes."""
