"""Weights as they are stored, and the functions that multiply by them.

A matrix of a model is a float array, or a stored form of one: a Weight, or a Joined of several. On
a CPU both become a Packed one when they are loaded. Layers call these functions and never ask
which.
"""

from jaxserve.models.weights.packed import Packed, pack
from jaxserve.models.weights.products import expert_linear, experts_linear, linear, take
from jaxserve.models.weights.weight import (
    Joined,
    Matrix,
    Plain,
    Scheme,
    Stored,
    Weight,
    is_finite,
    nbytes,
    widened,
)

__all__ = [
    "Joined",
    "Matrix",
    "Packed",
    "Plain",
    "Scheme",
    "Stored",
    "Weight",
    "expert_linear",
    "experts_linear",
    "is_finite",
    "linear",
    "nbytes",
    "pack",
    "take",
    "widened",
]
