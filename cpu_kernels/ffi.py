"""XLA's foreign function interface (FFI) from the C side, for numba.

XLA calls a handler with the address of a frame of C structs, the same from version 0.3 of its API
to 0.5 (jaxlib/include/xla/ffi/api/c_api.h). As 64-bit words, it holds at fixed places where the
buffers of the arguments and results are told.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from numba import njit, types

from cpu_kernels.machine import COMPILED, pointer, words

HANDLER = types.int64(types.int64)  # a handler's signature: a frame's address; 0 is no error
PART = types.void(
    types.int64, types.int64, types.int64
)  # a frame's address; which part of how many
PARTS = 8  # of a call for each thread: none waits long for another

# Words of XLA_FFI_CallFrame, and of XLA_FFI_Buffer.
_EXTENSION, _API, _ARGUMENTS, _RESULTS, _FRAME_WORDS = 1, 2, 9, 14, 22
_DATA, _RANK, _DIMS, _BUFFER_WORDS = 3, 4, 5, 6
# Of XLA_FFI_Metadata_Extension, XLA_FFI_Metadata and XLA_FFI_Api.
_TYPE, _METADATA, _VERSION, _API_VERSION = 1, 3, 3, 4
_IS_METADATA = 1
_OLDEST, _NEWEST = 3, 5  # minor versions of the API 0, whose structs are those above


@njit(**COMPILED)
def opened(address: int) -> np.ndarray:
    """The frame at an address."""
    return words(address, _FRAME_WORDS)


@njit(**COMPILED)
def asks_version(frame: np.ndarray) -> bool:
    """Whether XLA, at registration, only asks which version of its API the handler was made for;
    if so, it has its answer."""
    if frame[_EXTENSION] == 0:
        return False
    extension = words(frame[_EXTENSION], _METADATA + 1)
    if extension[_TYPE] & 0xFFFFFFFF != _IS_METADATA:
        return False
    # 32 bits of the major version, and 32 of the minor one.
    minor = words(frame[_API], _API_VERSION + 1)[_API_VERSION] >> 32
    known = max(_OLDEST, min(minor, _NEWEST))
    words(extension[_METADATA], _VERSION + 1)[_VERSION] = known << 32
    return True


@njit(**COMPILED)
def _buffer(buffers: int, i: int) -> tuple[Any, np.ndarray]:
    buffer = words(words(buffers, i + 1)[i], _BUFFER_WORDS)
    return pointer(buffer[_DATA]), words(buffer[_DIMS], buffer[_RANK])


@njit(**COMPILED)
def argument(frame: np.ndarray, i: int) -> tuple[Any, np.ndarray]:
    """Where argument i lies, for carray(), and its shape."""
    return _buffer(frame[_ARGUMENTS], i)


@njit(**COMPILED)
def result(frame: np.ndarray, i: int) -> tuple[Any, np.ndarray]:
    """Where result i goes, for carray(), and its shape."""
    return _buffer(frame[_RESULTS], i)


def register(name: str, handler: Any) -> None:
    """Makes a compiled handler the CPU's custom call of this name."""
    jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler.ctypes), platform="cpu")
