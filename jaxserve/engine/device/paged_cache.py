"""The KV pool on the device, and the face of it that one layer sees during a step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from jaxserve.models.cache import CacheSpec
from pallas_kernels import page_shape, paged_attention, write_kv

if TYPE_CHECKING:
    from jaxserve.engine.device.step_batch import StepBatch

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
    """One layer's pages and the step's batch (see StepBatch for the shapes).

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
    """The caches of a segment's layers while a step is traced. Layers that share a buffer hand it
    on: each finds what the layer before it has written.

    Args:
        pages: the buffers that these layers use; `pages` is afterwards what they have written.
        places: each layer's cache group, and its buffer among these.
        max_query_len: see PagedLayerCache.
    """

    def __init__(
        self,
        pages: Pages,
        places: tuple[tuple[int, int], ...],
        batch: StepBatch,
        max_query_len: int,
    ) -> None:
        self.pages = list(pages)
        self._places, self._batch, self._max_query_len = places, batch, max_query_len

    def __getitem__(self, nth: int) -> PagedLayerCache:
        (group, buffer), batch = self._places[nth], self._batch
        return PagedLayerCache(
            *self.pages[buffer],
            batch.write_slots[group],
            batch.block_tables[group],
            batch.context_lens,
            batch.query_starts,
            self._max_query_len,
        )

    def __setitem__(self, nth: int, cache: PagedLayerCache) -> None:
        self.pages[self._places[nth][1]] = (cache.k_pages, cache.v_pages)
