"""Adapters on the device: where they lie in slots, and how one is written into a slot."""
