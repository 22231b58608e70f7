"""Benchmarks of a clone: README.md says which command answers which question."""
