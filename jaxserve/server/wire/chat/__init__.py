"""Request and response types of /v1/chat/completions."""
