"""The KV pool on the device, and the face of it that one layer sees during a step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import jax
import jax.numpy as jnp

from jaxserve.models.cache import CacheSpec
from pallas_kernels import page_shape, paged_attention, write_kv

Pages = list[tuple[jax.Array, jax.Array]]  # one K and one V buffer a layer


def allocate(specs: tuple[CacheSpec, ...], blocks: int, block_size: int, dtype: jnp.dtype) -> Pages:
    """A pool of zeros: stale NaN must never meet a masked score."""
    shapes = [page_shape(blocks, s.num_kv_heads, block_size, s.head_dim) for s in specs]
    return [(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for shape in shapes]


def bytes_per_block(specs: tuple[CacheSpec, ...], block_size: int, dtype: jnp.dtype) -> int:
    """Bytes that one block takes over all layers, K and V together."""
    elements = sum(s.num_kv_heads * s.head_dim for s in specs)
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
