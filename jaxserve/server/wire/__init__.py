"""What crosses the wire: request and answer types, their validation, errors, server-sent events."""
