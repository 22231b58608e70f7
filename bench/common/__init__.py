"""What several benchmarks share: the figures' last line, the demo model, a server process."""
