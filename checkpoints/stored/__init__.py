"""Stored (quantised) forms of weights: how files keep them, and how tensors make a parameter."""
