"""The threads that share the parts of a call.

They are Python's, but never take its lock: each runs one compiled function until the process ends.
A call is offered to all of them; the caller takes parts, too, and never waits for one that sleeps.
A second call at the same time does without them.
"""

from __future__ import annotations

import atexit
import os
import threading
from pathlib import Path

import numpy as np
from numba import cfunc, njit, types

from cpu_kernels import ffi
from cpu_kernels.dense import linear
from cpu_kernels.machine import COMPILED, add, load, named, swap
from cpu_kernels.paged import attend

LINEAR, ATTENTION = "jaxserve_linear", "jaxserve_attention"  # the custom calls
_LINEAR, _ATTENTION = 0, 1
_MOST = 16  # threads; a step's calls are too short for more
_SPINS = 25000  # some 100 us, more than there is between two calls of a step
_NEVER = 2**62

# Words that the threads share, each in a cache line of its own.
_BUSY, _NEXT, _COUNT, _DONE, _KIND, _FRAME = range(0, 6 * 64, 64)
_ASLEEP, _WRITE_END, _THREADS, _END, _FLOATS = range(6 * 64, 11 * 64, 64)
_WORDS = np.zeros(12 * 8, np.int64)
_BASE = -(-_WORDS.ctypes.data // 64) * 64

_read = types.ExternalFunction("read", types.int64(types.int32, types.int64, types.int64))
_write = types.ExternalFunction("write", types.int64(types.int32, types.int64, types.int64))
_yield = types.ExternalFunction("sched_yield", types.int32())
# How a thread rounds and whether it flushes denormals, as XLA's threads do.
_get_floats = types.ExternalFunction("fegetenv", types.int32(types.int64))
_set_floats = types.ExternalFunction("fesetenv", types.int32(types.int64))


@cfunc(types.int64())
def _base() -> int:
    return _BASE


_crew = named("jaxserve_crew", _base, types.int64())  # alone is compiled at each start
_linear_part = named("jaxserve_linear_part", linear, ffi.PART)
_attention_part = named("jaxserve_attention_part", attend, ffi.PART)


@njit(**COMPILED)
def _do(kind: int, frame: int, part: int, parts: int) -> None:
    if kind == _LINEAR:
        _linear_part(frame, part, parts)
    else:
        _attention_part(frame, part, parts)


@njit(**COMPILED)
def _take_parts(base: int, helps: bool) -> None:
    """Does parts of the call that is offered until all are taken."""
    while load(base + _NEXT) < load(base + _COUNT):
        part = add(base + _NEXT, 1)
        parts = load(base + _COUNT)
        if part < parts:
            if helps:
                _set_floats(base + _FLOATS)
            _do(load(base + _KIND), load(base + _FRAME), part, parts)
            add(base + _DONE, 1)


@njit(**COMPILED)
def _share(base: int, kind: int, frame: int) -> None:
    """Does a call with all that help."""
    threads = load(base + _THREADS)
    if threads == 0 or swap(base + _BUSY, 1) != 0:
        _do(kind, frame, 0, 1)
        return
    parts = ffi.PARTS * (1 + threads)
    _get_floats(base + _FLOATS)
    swap(base + _DONE, 0)
    swap(base + _KIND, kind)
    swap(base + _FRAME, frame)
    swap(base + _COUNT, parts)
    swap(base + _NEXT, 0)  # from here on they may take some
    asleep = swap(base + _ASLEEP, 0)
    if asleep > 0:
        # A byte, whatever it is, for each.
        _write(load(base + _WRITE_END), base, min(asleep, threads))
    _take_parts(base, False)
    spins = 0
    while load(base + _DONE) < parts:
        spins += 1
        if spins % _SPINS == 0:
            _yield()
    swap(base + _NEXT, _NEVER)
    swap(base + _BUSY, 0)


@njit(nogil=True, **COMPILED)
def _help(base: int, sleep: int) -> None:
    byte = np.empty(1, np.int64)
    while load(base + _END) == 0:
        _take_parts(base, True)
        spins = 0
        while spins < _SPINS and load(base + _NEXT) >= load(base + _COUNT):
            spins += 1
        if spins == _SPINS:
            add(base + _ASLEEP, 1)
            if load(base + _NEXT) >= load(base + _COUNT) and load(base + _END) == 0:
                _read(sleep, byte.ctypes.data, 1)


_SLEEP, _WAKE = os.pipe()
os.set_blocking(_WAKE, False)


@cfunc(ffi.HANDLER, cache=True)
def _linear(frame: int) -> int:
    if not ffi.asks_version(ffi.opened(frame)):
        _share(_crew(), _LINEAR, frame)
    return 0


@cfunc(ffi.HANDLER, cache=True)
def _attention(frame: int) -> int:
    if not ffi.asks_version(ffi.opened(frame)):
        _share(_crew(), _ATTENTION, frame)
    return 0


def _cores() -> int:
    """That this process may use; a container's share of them (cgroup v2) is counted, too."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return min(cores or 1, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):  # no such file, or "max"
        return cores or 1


def _set(word: int, value: int) -> None:
    _WORDS[(_BASE + word - _WORDS.ctypes.data) // 8] = value


def _start() -> None:
    helpers = [
        threading.Thread(target=_help, args=(_BASE, _SLEEP), daemon=True)
        for _ in range(min(_cores(), _MOST) - 1)
    ]

    def end() -> None:
        _set(_END, 1)
        os.write(_WAKE, bytes(len(helpers)))
        for helper in helpers:
            helper.join()

    _set(_WRITE_END, _WAKE)
    _set(_NEXT, _NEVER)
    _set(_THREADS, len(helpers))
    for helper in helpers:
        helper.start()
    atexit.register(end)
    os.register_at_fork(after_in_child=lambda: _set(_THREADS, 0))
    ffi.register(LINEAR, _linear)
    ffi.register(ATTENTION, _attention)


_start()
