"""The server process: its own cost, and what it does under faults, fuzzing and overload."""
