"""Compiling many programs at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from threading import Event
from typing import Any, NamedTuple

import jax
from jax.stages import Compiled, Lowered
from tqdm import tqdm

THREADS = 2


class Job(NamedTuple):
    """A function to compile for arguments of these shapes.

    Args:
        donated: positions of the arguments it takes over.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    donated: tuple[int, ...] = ()


def trace(_: Hashable, job: Job) -> Lowered:
    """A job's program, not yet compiled."""
    return jax.jit(job.function, donate_argnums=job.donated).lower(*job.arguments)


def compile_together(
    jobs: Mapping[Hashable, Job],
    progress: bool,
    given_up: Event,
    lower: Callable[[Hashable, Job], Lowered] = trace,
) -> dict[Hashable, Compiled]:
    """Compiles all jobs: tracing is serial, XLA's part runs in threads beside it.

    Args:
        given_up: once it is set, no further job is begun.
        lower: gives a job's program.

    Raises:
        CancelledError: it was.
    """

    def compile_one(lowered: Lowered) -> Compiled:
        if given_up.is_set():
            raise CancelledError
        return lowered.compile()

    with (
        ThreadPoolExecutor(THREADS) as pool,
        tqdm(total=len(jobs), desc="compile", unit="program", disable=not progress) as bar,
    ):
        futures = {}
        for key, job in jobs.items():
            if given_up.is_set():
                raise CancelledError
            futures[key] = pool.submit(compile_one, lower(key, job))
            futures[key].add_done_callback(lambda _: bar.update())
        return {key: future.result() for key, future in futures.items()}
