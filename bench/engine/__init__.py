"""The engine without a server: its speed, its scheduler, how cost grows, whether results repeat."""
