"""Measures a device's copy bandwidth and matmul rate, and times functions on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


@dataclass(frozen=True)
class Timing:
    """How often and on what sizes to measure.

    Args:
        repeats: calls inside one dispatch, so that the host's share of the time is small.
        samples: measurements, of which the shortest counts.
        copied: bytes of the copy that measures the bandwidth.
        matmul: rows, columns and inner size of the product that measures the matmul rate.
    """

    repeats: int = 20
    samples: int = 5
    copied: int = 2**30
    matmul: int = 8192

    def seconds(self, step: Callable[..., Any], x: Any, *args: Any) -> float:
        """Shortest seconds of one step(x, *args), which returns a new x; `repeats` are chained."""

        @jax.jit
        def run(x: Any, *args: Any) -> Any:
            return lax.fori_loop(0, self.repeats, lambda _, x: step(x, *args), x)

        jax.block_until_ready(run(x, *args))
        samples = []
        for _ in range(self.samples):
            start = time.perf_counter()
            jax.block_until_ready(run(x, *args))
            samples.append(time.perf_counter() - start)
        return min(samples) / self.repeats

    def copy_bandwidth(self) -> float:
        """Bytes a second, read and written."""
        x = jnp.zeros(self.copied // 4, jnp.float32)
        # Adding 1 keeps XLA from dropping the copies.
        return 2 * x.nbytes / self.seconds(lambda x: x + 1, x)

    def matmul_rate(self) -> float:
        """bf16 operations a second."""
        size = self.matmul
        x = jnp.full((size, size), 1 / size, jnp.bfloat16)
        return 2 * size**3 / self.seconds(lambda x, w: x @ w, x, x)


QUICK = Timing(repeats=1, samples=1, copied=2**20, matmul=128)
