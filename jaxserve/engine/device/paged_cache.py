"""The KV pool on the device, and the interface by which a layer reads and writes it in a step."""

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
    """A pool of zeros. Other memory may hold NaN, which spreads even from masked places."""
    shapes = [page_shape(blocks, s.num_kv_heads, block_size, s.head_dim) for s in buffers]
    return [(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for shape in shapes]


def bytes_per_block(buffers: tuple[CacheSpec, ...], block_size: int, dtype: jnp.dtype) -> int:
    """Bytes of one block in all buffers, K and V together."""
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
        kv_scales: jax.Array | None = None,
    ) -> tuple[jax.Array, PagedLayerCache]:
        """See LayerCache.attend."""
        k_scale = v_scale = None
        if kv_scales is not None and self.k_pages.dtype.itemsize == 1:
            k_scale, v_scale = kv_scales[0], kv_scales[1]
        k_pages, v_pages = write_kv(
            *(k, v, self.k_pages, self.v_pages, self.write_slots), k_scale=k_scale, v_scale=v_scale
        )
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
            k_scale=k_scale,
            v_scale=v_scale,
            max_query_len=self.max_query_len,
        )
        return out, replace(self, k_pages=k_pages, v_pages=v_pages)


class StepCaches:
    """The caches of a layer group while a step is traced. Of layers that share a buffer, each reads
    what the one before it has written.

    Args:
        pages: the buffers that these layers use; the attribute `pages` is what they have written.
        places: each layer's cache group, and the index of its buffer in `pages`.
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
