"""Sampling: a request's parameters, the device sampler, token masks and grammars."""
