"""Request and response types of /v1/completions."""
