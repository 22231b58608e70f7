"""Reads the C structs of XLA's foreign function interface (FFI) from numba code.

XLA calls a handler with the address of a call frame, a C struct (see
jaxlib/include/xla/ffi/api/c_api.h). The structs read here have the same layout in the versions 0.3
to 0.5 of that API. They are read as 64-bit words at fixed offsets.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from numba import njit, types

from cpu_kernels.llvm_intrinsics import COMPILED, pointer, words

# Signature of a handler: it gets the address of a call frame and returns 0, which means no error.
HANDLER = types.int64(types.int64)
# Signature of one part of a call: the frame's address, the part's index, the number of parts.
PART = types.void(types.int64, types.int64, types.int64)
# Parts per thread. Several small parts keep the threads busy until the end of a call.
PARTS_PER_THREAD = 8

# Types are declared where arguments are constants, for each of which numba would compile
# the function again.
_WORDS = types.int64[::1]
_DATA_AND_SHAPE = types.Tuple((types.voidptr, _WORDS))

# Word offsets in XLA_FFI_CallFrame, and its length.
_EXTENSION, _API, _ARGUMENTS, _RESULTS, _FRAME_WORDS = 1, 2, 9, 14, 22
# Word offsets in XLA_FFI_Buffer, and its length.
_DATA, _RANK, _DIMS, _BUFFER_WORDS = 3, 4, 5, 6
# Word offsets in XLA_FFI_Metadata_Extension, XLA_FFI_Metadata and XLA_FFI_Api.
_TYPE, _METADATA, _VERSION, _API_VERSION = 1, 3, 3, 4
_IS_METADATA = 1
# Minor versions of API version 0 whose structs have the layout above.
_OLDEST_MINOR, _NEWEST_MINOR = 3, 5


@njit(_WORDS(types.int64), **COMPILED)
def read_frame(address: int) -> np.ndarray:
    """The words of the call frame at an address."""
    return words(address, _FRAME_WORDS)


@njit(types.boolean(_WORDS), **COMPILED)
def answers_version_query(frame: np.ndarray) -> bool:
    """Whether this call only asked for the API version the handler was built for.

    XLA asks once, at registration. The answer is written into the frame; the handler must then
    return without touching arguments or results, for there are none.
    """
    if frame[_EXTENSION] == 0:
        return False
    extension = words(frame[_EXTENSION], _METADATA + 1)
    if extension[_TYPE] & 0xFFFFFFFF != _IS_METADATA:
        return False
    # The word holds the major version in its lower 32 bits and the minor version in its upper.
    minor = words(frame[_API], _API_VERSION + 1)[_API_VERSION] >> 32
    known = max(_OLDEST_MINOR, min(minor, _NEWEST_MINOR))
    words(extension[_METADATA], _VERSION + 1)[_VERSION] = known << 32
    return True


@njit(_DATA_AND_SHAPE(types.int64, types.int64), **COMPILED)
def _buffer(buffers: int, i: int) -> tuple[Any, np.ndarray]:
    buffer = words(words(buffers, i + 1)[i], _BUFFER_WORDS)
    return pointer(buffer[_DATA]), words(buffer[_DIMS], buffer[_RANK])


@njit(_DATA_AND_SHAPE(_WORDS, types.int64), **COMPILED)
def argument(frame: np.ndarray, i: int) -> tuple[Any, np.ndarray]:
    """Pointer to the data of argument i, for carray(), and its shape."""
    return _buffer(frame[_ARGUMENTS], i)


@njit(_DATA_AND_SHAPE(_WORDS, types.int64), **COMPILED)
def result(frame: np.ndarray, i: int) -> tuple[Any, np.ndarray]:
    """Pointer to the data of result i, for carray(), and its shape."""
    return _buffer(frame[_RESULTS], i)


def register(name: str, handler: Any) -> None:
    """Registers a compiled handler as the CPU's custom call of this name."""
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler.ctypes), platform="cpu")
