"""Low-level operations that numba does not offer: pointers, atomic words, functions by symbol."""

from __future__ import annotations

from typing import Any

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic

_WORD = ir.IntType(64)
# Options for every njit: compiled code is cached on disk, and a division by zero gives infinity or
# NaN instead of an exception, which nothing could catch.
COMPILED: Any = {"cache": True, "error_model": "numpy"}


def external_function(name: str, function: Any, signature: Any) -> Any:
    """Registers a compiled function under a symbol name, and returns it as numba calls it.

    Code that is cached on disk must not contain addresses of this process. A caller that is
    compiled against the symbol contains none, and does not compile the function in again.
    """
    llvmlite.binding.add_symbol(name, function.address)
    return types.ExternalFunction(name, signature)


@intrinsic
def pointer(typing: Any, address: Any) -> Any:
    """An address as a pointer, for carray()."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.voidptr(address), codegen


@njit(types.int64[::1](types.int64, types.int64), **COMPILED)
def words(address: int, n: int) -> np.ndarray:
    """The n 64-bit words at an address, as an int64 array."""
    return carray(pointer(address), n, np.int64)


@njit(types.float32[::1](types.int64, types.int64), **COMPILED)
def floats(address: int, n: int) -> np.ndarray:
    """The n floats at an address, as a float32 array."""
    return carray(pointer(address), n, np.float32)


@intrinsic
def atomic_load(typing: Any, address: Any) -> Any:
    """Reads a 64-bit word that other threads write."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = builder.inttoptr(args[0], _WORD.as_pointer())
        return builder.load_atomic(word, "seq_cst", 8)

    return types.int64(types.int64), codegen


def _read_modify_write(operation: str) -> tuple[Any, Any]:
    """Signature and code generator of an atomic operation that returns the word's old value."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        word = builder.inttoptr(args[0], _WORD.as_pointer())
        return builder.atomic_rmw(operation, word, args[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def atomic_exchange(typing: Any, address: Any, value: Any) -> Any:
    """Writes a 64-bit word and returns its old value."""
    return _read_modify_write("xchg")


@intrinsic
def atomic_add(typing: Any, address: Any, value: Any) -> Any:
    """Adds to a 64-bit word and returns its old value."""
    return _read_modify_write("add")


@intrinsic
def float_from_bits(typing: Any, bits: Any) -> Any:
    """The float32 with this 32-bit representation."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(signature.return_type))

    return types.float32(types.int32), codegen


@intrinsic
def call_address(typing: Any, function: Any, argument: Any) -> Any:
    """Calls the C function of one 64-bit word at an address."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(ir.VoidType(), [_WORD])
        builder.call(builder.inttoptr(args[0], kind.as_pointer()), [args[1]])
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen
