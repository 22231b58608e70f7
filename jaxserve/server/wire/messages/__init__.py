"""Request and response types of /v1/messages, Anthropic's API."""
