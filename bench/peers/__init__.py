"""Other engines: how they are installed and driven, and the comparison with them."""
