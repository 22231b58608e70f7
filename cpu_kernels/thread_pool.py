"""A thread pool that runs the parts of a kernel call on all cores.

The threads are Python threads that never hold Python's lock (GIL): each runs one compiled function
until the process ends. The calling thread offers a call's parts to all of them and works on parts
itself, so it never waits for a sleeping thread to wake. The pool serves one call at a time; a
second call that arrives meanwhile runs on its own thread alone.
"""

from __future__ import annotations

import atexit
import os
import threading
from pathlib import Path

import numpy as np
from numba import cfunc, njit, types

from cpu_kernels import ffi
from cpu_kernels.adapters import adapt_part, is_small
from cpu_kernels.llvm_intrinsics import (
    COMPILED,
    atomic_add,
    atomic_exchange,
    atomic_load,
    external_function,
)
from cpu_kernels.matmul import linear_part
from cpu_kernels.normalize import normalize_part
from cpu_kernels.paged_attention import attention_part
from cpu_kernels.stored_matmul import stored_linear_part

# Names of the custom calls.
LINEAR, ATTENTION = "jaxserve_linear", "jaxserve_attention"
STORED_LINEAR, NORMALIZE = "jaxserve_stored_linear", "jaxserve_normalize"
ADAPT = "jaxserve_adapt"
_LINEAR, _ATTENTION, _STORED_LINEAR, _NORMALIZE, _ADAPT = range(5)
# Floats of a call to normalize from which on other threads help: fewer take less time than waking.
_SHARED_FLOATS = 2**15
_MAX_THREADS = 16  # the calls of a step are too short to gain from more
# Checks before an idle thread goes to sleep: about 100 us, longer than the pause between two calls
# of a step.
_SPINS = 25000
WORKER = "jaxserve-kernels"  # begins the names of threads
_NO_PART = 2**62  # an index greater than any number of parts

# Words shared by the threads, as byte offsets; each has a cache line (64 bytes) of its own.
_BUSY, _NEXT_PART, _PARTS, _PARTS_DONE, _KERNEL, _FRAME = range(0, 6 * 64, 64)
_SLEEPING, _WAKE_FD, _WORKERS, _STOP, _FLOAT_ENVIRONMENT = range(6 * 64, 11 * 64, 64)
_WORDS = np.zeros(12 * 8, np.int64)
_BASE = -(-_WORDS.ctypes.data // 64) * 64  # the first word's address, aligned to a cache line

_read = types.ExternalFunction("read", types.int64(types.int32, types.int64, types.int64))
_write = types.ExternalFunction("write", types.int64(types.int32, types.int64, types.int64))
_yield = types.ExternalFunction("sched_yield", types.int32())
# The floating-point environment: rounding mode and flushing of denormals. The workers take over
# that of the calling XLA thread, so that a part's result does not depend on who computes it.
_get_float_environment = types.ExternalFunction("fegetenv", types.int32(types.int64))
_set_float_environment = types.ExternalFunction("fesetenv", types.int32(types.int64))


@cfunc(types.int64())
def _base() -> int:
    return _BASE


# The address differs from process to process, so this function alone is not cached on disk.
_shared_words = external_function("jaxserve_shared_words", _base, types.int64())
_stored_linear_part = external_function("jaxserve_stored_linear_part", stored_linear_part, ffi.PART)
_linear_part = external_function("jaxserve_linear_part", linear_part, ffi.PART)
_normalize_part = external_function("jaxserve_normalize_part", normalize_part, ffi.PART)
_adapt_part = external_function("jaxserve_adapt_part", adapt_part, ffi.PART)
_attention_part = external_function("jaxserve_attention_part", attention_part, ffi.PART)


@njit(**COMPILED)
def _run_part(kernel: int, frame: int, part: int, parts: int) -> None:
    if kernel == _LINEAR:
        _linear_part(frame, part, parts)
    elif kernel == _NORMALIZE:
        _normalize_part(frame, part, parts)
    elif kernel == _STORED_LINEAR:
        _stored_linear_part(frame, part, parts)
    elif kernel == _ADAPT:
        _adapt_part(frame, part, parts)
    else:
        _attention_part(frame, part, parts)


@njit(types.void(types.int64, types.boolean), **COMPILED)
def _run_parts(base: int, is_worker: bool) -> None:
    """Claims and runs parts of the current call until all are claimed."""
    while atomic_load(base + _NEXT_PART) < atomic_load(base + _PARTS):
        part = atomic_add(base + _NEXT_PART, 1)
        parts = atomic_load(base + _PARTS)
        if part < parts:
            if is_worker:
                _set_float_environment(base + _FLOAT_ENVIRONMENT)
            _run_part(atomic_load(base + _KERNEL), atomic_load(base + _FRAME), part, parts)
            atomic_add(base + _PARTS_DONE, 1)


@njit(types.void(types.int64, types.int64, types.int64), **COMPILED)
def _run_call(base: int, kernel: int, frame: int) -> None:
    """Runs a call on the calling thread and the workers; returns when all parts are done."""
    workers = atomic_load(base + _WORKERS)
    if workers == 0 or atomic_exchange(base + _BUSY, 1) != 0:
        _run_part(kernel, frame, 0, 1)
        return
    parts = ffi.PARTS_PER_THREAD * (1 + workers)
    _get_float_environment(base + _FLOAT_ENVIRONMENT)
    atomic_exchange(base + _PARTS_DONE, 0)
    atomic_exchange(base + _KERNEL, kernel)
    atomic_exchange(base + _FRAME, frame)
    atomic_exchange(base + _PARTS, parts)
    atomic_exchange(base + _NEXT_PART, 0)  # from here on workers claim parts
    sleeping = atomic_exchange(base + _SLEEPING, 0)
    if sleeping > 0:
        # Each sleeping worker waits for one byte; its value does not matter.
        _write(atomic_load(base + _WAKE_FD), base, min(sleeping, workers))
    _run_parts(base, False)
    spins = 0
    while atomic_load(base + _PARTS_DONE) < parts:
        spins += 1
        if spins % _SPINS == 0:
            _yield()
    atomic_exchange(base + _NEXT_PART, _NO_PART)
    atomic_exchange(base + _BUSY, 0)


# With types, so that it is compiled before it runs, as everything else is.
@njit(types.void(types.int64, types.int64), nogil=True, **COMPILED)
def _worker_loop(base: int, sleep_fd: int) -> None:
    byte = np.empty(1, np.int64)
    while atomic_load(base + _STOP) == 0:
        _run_parts(base, True)
        spins = 0
        while spins < _SPINS and atomic_load(base + _NEXT_PART) >= atomic_load(base + _PARTS):
            spins += 1
        if spins == _SPINS:
            atomic_add(base + _SLEEPING, 1)
            # Checked once more, as a call may have come before this thread counted as sleeping.
            idle = atomic_load(base + _NEXT_PART) >= atomic_load(base + _PARTS)
            if idle and atomic_load(base + _STOP) == 0:
                _read(sleep_fd, byte.ctypes.data, 1)


# Workers sleep in a read of this pipe, and are woken by one byte each.
_SLEEP_FD, _WAKE_PIPE_FD = os.pipe()
os.set_blocking(_WAKE_PIPE_FD, False)


@cfunc(ffi.HANDLER, cache=True)
def _linear_handler(frame: int) -> int:
    if not ffi.answers_version_query(ffi.read_frame(frame)):
        _run_call(_shared_words(), _LINEAR, frame)
    return 0


@cfunc(ffi.HANDLER, cache=True)
def _stored_linear_handler(frame: int) -> int:
    if not ffi.answers_version_query(ffi.read_frame(frame)):
        _run_call(_shared_words(), _STORED_LINEAR, frame)
    return 0


@cfunc(ffi.HANDLER, cache=True)
def _normalize_handler(frame: int) -> int:
    words = ffi.read_frame(frame)
    if not ffi.answers_version_query(words):
        _, shape = ffi.argument(words, 0)
        if shape[0] * shape[1] < _SHARED_FLOATS:
            _normalize_part(frame, 0, 1)
        else:
            _run_call(_shared_words(), _NORMALIZE, frame)
    return 0


@cfunc(ffi.HANDLER, cache=True)
def _adapt_handler(frame: int) -> int:
    words = ffi.read_frame(frame)
    if not ffi.answers_version_query(words):
        if is_small(words):
            _adapt_part(frame, 0, 1)
        else:
            _run_call(_shared_words(), _ADAPT, frame)
    return 0


@cfunc(ffi.HANDLER, cache=True)
def _attention_handler(frame: int) -> int:
    if not ffi.answers_version_query(ffi.read_frame(frame)):
        _run_call(_shared_words(), _ATTENTION, frame)
    return 0


def _usable_cores() -> int:
    """Cores that this process may use, limited by its container's share of processor time."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, round(min(cores or 1, _share(Path("/sys/fs/cgroup")))))


def _share(cgroup: Path) -> float:
    """Cores' worth of processor time that a container may use: infinite without a limit.

    Args:
        cgroup: where the control groups are mounted (version 2, or 1).
    """
    files = [("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")]
    for names in files:
        try:
            quota, period = " ".join((cgroup / name).read_text() for name in names).split()
            share = int(quota) / int(period)
        except (OSError, ValueError):  # there are no such files, or the quota is "max"
            continue
        return share if share > 0 else float("inf")  # in version 1, no limit is -1
    return float("inf")


def default_threads() -> int:
    """The threads that calls run on until use_threads() is called."""
    return min(_usable_cores(), _MAX_THREADS)


def _set_word(word: int, value: int) -> None:
    _WORDS[(_BASE + word - _WORDS.ctypes.data) // 8] = value


_workers: list[threading.Thread] = []


def _stop_workers() -> None:
    _set_word(_STOP, 1)
    os.write(_WAKE_PIPE_FD, bytes(len(_workers)))
    for worker in _workers:
        worker.join()
    _workers.clear()


def use_threads(count: int) -> None:
    """Has calls run on so many threads from now on, the calling one among them. No call may run
    meanwhile."""
    _stop_workers()
    for word, value in ((_STOP, 0), (_SLEEPING, 0), (_WORKERS, count - 1)):
        _set_word(word, value)
    for n in range(1, count):
        worker = threading.Thread(
            target=_worker_loop, args=(_BASE, _SLEEP_FD), name=f"{WORKER}-{n}", daemon=True
        )
        _workers.append(worker)
        worker.start()


def _start() -> None:
    _set_word(_WAKE_FD, _WAKE_PIPE_FD)
    _set_word(_NEXT_PART, _NO_PART)
    use_threads(default_threads())
    atexit.register(_stop_workers)
    # A forked child has none of the threads; its calls run on the calling thread.
    os.register_at_fork(after_in_child=_forget_workers)
    ffi.register(LINEAR, _linear_handler)
    ffi.register(NORMALIZE, _normalize_handler)
    ffi.register(STORED_LINEAR, _stored_linear_handler)
    ffi.register(ADAPT, _adapt_handler)
    ffi.register(ATTENTION, _attention_handler)


def _forget_workers() -> None:
    _workers.clear()
    _set_word(_WORKERS, 0)


_start()
