"""What numba lacks of machine language: memory and functions at an address, shared words."""

from __future__ import annotations

from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic

_WORD = ir.IntType(64)
# For njit: kept on disk; a division by zero gives infinity or NaN, for nobody is there to catch.
COMPILED: Any = {"cache": True, "error_model": "numpy"}


def named(name: str, function: Any, signature: Any) -> Any:
    """A C function by a name. Code on disk may know no address; and what calls it so is compiled
    without it."""
    llvmlite.binding.add_symbol(name, function.address)
    return types.ExternalFunction(name, signature)


@intrinsic
def pointer(typing: Any, address: Any) -> Any:
    """An address as a pointer, for carray()."""

    def make(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.voidptr(address), make


@njit(**COMPILED)
def words(address: int, n: int) -> np.ndarray:
    """The n 64-bit words at an address."""
    return carray(pointer(address), n, np.int64)


@njit(**COMPILED)
def floats(address: int, n: int) -> np.ndarray:
    """The n float32 at an address."""
    return carray(pointer(address), n, np.float32)


@intrinsic
def load(typing: Any, address: Any) -> Any:
    """A word that other threads write."""

    def make(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = builder.inttoptr(args[0], _WORD.as_pointer())
        return builder.load_atomic(word, "seq_cst", 8)

    return types.int64(types.int64), make


def _changed(operation: str) -> tuple[Any, Any]:
    """What an intrinsic is that changes a word that other threads write, and gives what it was."""

    def make(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = builder.inttoptr(args[0], _WORD.as_pointer())
        return builder.atomic_rmw(operation, word, args[1], "seq_cst")

    return types.int64(types.int64, types.int64), make


@intrinsic
def swap(typing: Any, address: Any, value: Any) -> Any:
    """Writes a word; what it was."""
    return _changed("xchg")


@intrinsic
def add(typing: Any, address: Any, value: Any) -> Any:
    """Adds to a word; what it was."""
    return _changed("add")


@intrinsic
def float_of_bits(typing: Any, bits: Any) -> Any:
    """The float32 that has these 32 bits."""

    def make(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(signature.return_type))

    return types.float32(types.int32), make
