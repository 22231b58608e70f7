"""Compiles many programs, several at a time."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from threading import Event
from typing import Any, NamedTuple

import jax
from jax.stages import Compiled, Lowered
from tqdm import tqdm

THREADS = 2


class CompileJob(NamedTuple):
    """A function to compile for arguments of these shapes.

    Args:
        donated: positions of the arguments whose memory it may reuse.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    donated: tuple[int, ...] = ()


def trace(_: Hashable, job: CompileJob) -> Lowered:
    """A job's program, not yet compiled."""
    return jax.jit(job.function, donate_argnums=job.donated).lower(*job.arguments)


def compile_jobs(
    jobs: Mapping[Hashable, CompileJob],
    progress: bool,
    stop: Event,
    lower: Callable[[Hashable, CompileJob], Lowered] = trace,
) -> dict[Hashable, Compiled]:
    """Compiles all jobs. Tracing is serial; XLA compiles in threads meanwhile.

    Args:
        stop: once it is set, no further job is begun.
        lower: traces a job, or finds its traced program by its key.

    Raises:
        CancelledError: `stop` was set.
    """

    def compile_one(lowered: Lowered) -> Compiled:
        if stop.is_set():
            raise CancelledError
        return lowered.compile()

    with (
        ThreadPoolExecutor(THREADS) as pool,
        tqdm(total=len(jobs), desc="compile", unit="program", disable=not progress) as bar,
    ):
        futures = {}
        for key, job in jobs.items():
            if stop.is_set():
                raise CancelledError
            futures[key] = pool.submit(compile_one, lower(key, job))
            futures[key].add_done_callback(lambda _: bar.update())
        return {key: future.result() for key, future in futures.items()}
