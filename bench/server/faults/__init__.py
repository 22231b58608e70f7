"""Faults of clients and machines against a real server: python -m bench.server.faults."""
