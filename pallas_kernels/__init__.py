"""Paged attention for ragged batches, and the cache operations it needs: writing and copying. On a
GPU, products with matrices of 4- and 8-bit codes, too.

Of this repository, the package imports only `cpu_kernels`, and that only on a CPU.
"""

from pallas_kernels.api import copy_blocks, page_shape, paged_attention, write_kv
from pallas_kernels.triton_matmul import stored_matmul, takes_stored

__all__ = [
    "copy_blocks",
    "page_shape",
    "paged_attention",
    "stored_matmul",
    "takes_stored",
    "write_kv",
]
