"""Weights as they are stored, and the functions that multiply by them.

A matrix of a model is a float array, or a stored form of one: a Weight, or a Joined of several. On
a CPU both become a Packed one when they are loaded. In a step with adapters any of them is in an
Adapted one. Layers call these functions and never ask which.
"""

from jaxserve.models.weights.adapters import Adapted, AdapterRows, LowRank, Stack, for_rows
from jaxserve.models.weights.packed import Packed, pack
from jaxserve.models.weights.products import expert_linear, experts_linear, linear, take
from jaxserve.models.weights.stack_shape import StackShape
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
    "Adapted",
    "AdapterRows",
    "Joined",
    "LowRank",
    "Matrix",
    "Packed",
    "Plain",
    "Scheme",
    "Stack",
    "StackShape",
    "Stored",
    "Weight",
    "expert_linear",
    "experts_linear",
    "for_rows",
    "is_finite",
    "linear",
    "nbytes",
    "pack",
    "take",
    "widened",
]
