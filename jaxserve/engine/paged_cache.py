"""The KV pool on the device, and the face of it that one layer sees during a step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from jaxserve.engine.cache_layout import CacheLayout
from jaxserve.models.cache import CacheSpec
from pallas_kernels import page_shape, paged_attention, write_kv

if TYPE_CHECKING:
    from jaxserve.engine.batch import StepInts

Pages = list[tuple[jax.Array, jax.Array]]  # K and V of each buffer of a CacheLayout


def allocate(
    buffers: tuple[CacheSpec, ...], blocks: int, block_size: int, dtype: jnp.dtype
) -> Pages:
    """A pool of zeros: stale NaN must never meet a masked score."""
    shapes = [page_shape(blocks, s.num_kv_heads, block_size, s.head_dim) for s in buffers]
    return [(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for shape in shapes]


def bytes_per_block(buffers: tuple[CacheSpec, ...], block_size: int, dtype: jnp.dtype) -> int:
    """Bytes that one block takes over all buffers, K and V together."""
    elements = sum(s.num_kv_heads * s.head_dim for s in buffers)
    return 2 * block_size * elements * jnp.dtype(dtype).itemsize


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PagedLayerCache:
    """One layer's pages and the step's batch (see StepInts for the shapes).

    Args:
        max_query_len: most tokens of one row, known when the step is compiled.
    """

    k_pages: jax.Array
    v_pages: jax.Array
    write_slots: jax.Array
    block_tables: jax.Array
    context_lens: jax.Array
    query_starts: jax.Array
    max_query_len: int = field(metadata={"static": True})

    @property
    def num_tokens(self) -> jax.Array:
        """See LayerCache.num_tokens."""
        return self.query_starts[-1]

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
    ) -> tuple[jax.Array, PagedLayerCache]:
        """See LayerCache.attend."""
        k_pages, v_pages = write_kv(k, v, self.k_pages, self.v_pages, self.write_slots)
        out = paged_attention(
            q,
            k_pages,
            v_pages,
            self.block_tables,
            self.context_lens,
            self.query_starts,
            scale=scale,
            window=window,
            softcap=softcap,
            sinks=sinks,
            max_query_len=self.max_query_len,
        )
        return out, replace(self, k_pages=k_pages, v_pages=v_pages)


class StepCaches:
    """All layers' caches while a step is traced, by layer. Layers that share a buffer hand it on:
    each finds what the layer before it has written.

    Args:
        pages: the pool; `pages` is afterwards the pool with the step's keys and values in it.
        max_query_len: see PagedLayerCache.
    """

    def __init__(
        self, layout: CacheLayout, pages: Pages, batch: StepInts[jax.Array], max_query_len: int
    ) -> None:
        self.pages = list(pages)
        self._layout, self._batch, self._max_query_len = layout, batch, max_query_len

    def __getitem__(self, layer: int) -> PagedLayerCache:
        group, batch = self._layout.group_of[layer], self._batch
        return PagedLayerCache(
            *self.pages[self._layout.buffer_of[layer]],
            batch.write_slots[group],
            batch.block_tables[group],
            batch.context_lens,
            batch.query_starts,
            self._max_query_len,
        )

    def __setitem__(self, layer: int, cache: PagedLayerCache) -> None:
        self.pages[self._layout.buffer_of[layer]] = (cache.k_pages, cache.v_pages)
