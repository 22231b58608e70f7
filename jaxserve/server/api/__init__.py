"""The endpoints: one file or folder for each family, and the table of routes."""
