"""The formats of tool calls, a file each."""
