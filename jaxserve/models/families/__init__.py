"""One short file a family: how its config is read, and what its layer has that others haven't."""
