"""The threads that compute on a CPU: how many, and the machine code that they run."""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
from contextlib import suppress

from jaxserve.config import EngineConfig

# From where XLA takes the size of its thread pool.
_XLA_THREADS = "NPROC"


def load_kernels_meanwhile(config: EngineConfig) -> None:
    """Begins to load the CPU kernels in another thread, where a CPU computes. The first time on a
    machine they are compiled, and a download or a tokenizer needn't wait for that."""
    if _has_no_gpu(config):
        threading.Thread(target=_load, name="load-kernels").start()


def _has_no_gpu(config: EngineConfig) -> bool:
    return config.device == "cpu" or importlib.util.find_spec("jax_plugins") is None


def _load() -> None:
    with suppress(Exception):  # who needs them imports them again, and gets the error
        importlib.import_module("cpu_kernels")


def limit_xla_threads(config: EngineConfig) -> None:
    """Has XLA compute with as many threads as use_threads() gives to the kernels. Has no effect
    once this process has used a device; a setting of the user takes precedence."""
    threads = config.threads
    if threads is None and _has_no_gpu(config):
        import cpu_kernels

        threads = cpu_kernels.default_threads()
    if threads is not None and (config.threads or threads < (os.cpu_count() or 1)):
        os.environ.setdefault(_XLA_THREADS, str(threads))


def use_threads(config: EngineConfig) -> None:
    """Has the CPU kernels compute on so many threads, of which the calling one is one."""
    import cpu_kernels

    cpu_kernels.use_threads(config.threads or cpu_kernels.default_threads())
