"""Runs in the caller's process: client, request validation, output processing. Imports no jax."""
