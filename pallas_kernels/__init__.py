"""Paged attention for ragged batches, and the two cache operations it needs. Imports jax alone."""

from pallas_kernels.api import copy_blocks, page_shape, paged_attention, write_kv

__all__ = ["copy_blocks", "page_shape", "paged_attention", "write_kv"]
