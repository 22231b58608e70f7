"""Engines on one machine, one model and one trace: python -m bench.peers.compare."""
