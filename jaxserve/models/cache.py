"""What a layer caches, and the interface to it: models know nothing else about paging."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import jax


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """What a layer declares that it caches: paged K and V.

    Layers with equal declarations share block tables (engine/device/cache_layout.py).

    Args:
        num_kv_heads: K.
        head_dim: D.
        window: only the last `window` tokens are read; None: all.
    """

    num_kv_heads: int
    head_dim: int
    window: int | None = None


class LayerCache(Protocol):
    """One layer's cache during one step, a pytree; the engine implements it."""

    @property
    def num_tokens(self) -> jax.Array:
        """Number of real tokens in the batch, int32; those after them are padding."""
        ...

    def attend(
        self,
        q: jax.Array,
        k: jax.Array,
        v: jax.Array,
        *,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        sinks: jax.Array | None = None,
        kv_scales: jax.Array | None = None,
    ) -> tuple[jax.Array, Self]:
        """Writes k and v [T, K, D] of this step, then attends causally from q [T, H, D].

        Args:
            scale: on q . k.
            window: as CacheSpec has it.
            softcap: scores become softcap * tanh(score / softcap).
            kv_scales: [2, K], what keys and what values are divided by in a cache of 8 bits.
            sinks: [H], one more logit a head in the softmax, with no value.

        Returns:
            The attention output [T, H, D] and the cache with the new keys and values in it.
        """
        ...


Cache = TypeVar("Cache", bound=LayerCache)


class LayerCaches(Protocol[Cache]):
    """The caches of the layers that are run, in their order; a list is one."""

    def __getitem__(self, nth: int, /) -> Cache: ...

    def __setitem__(self, nth: int, cache: Cache, /) -> None: ...
