"""Benchmarks: load for any OpenAI-compatible server, offline runs, start-up. `jaxserve bench`."""
