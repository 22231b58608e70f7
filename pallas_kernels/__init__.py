"""Paged attention for ragged batches, and the cache operations it needs: writing and copying.

Of this repository, the package imports only `cpu_kernels`, and that only on a CPU.
"""

from pallas_kernels.api import copy_blocks, page_shape, paged_attention, write_kv

__all__ = ["copy_blocks", "page_shape", "paged_attention", "write_kv"]
