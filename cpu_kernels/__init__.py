"""Machine code for CPUs where XLA's falls short, by numba: products of few rows, paged attention."""

from cpu_kernels.paged import NAME as _ATTENTION
from cpu_kernels.paged import attention
from cpu_kernels.dense import NAME as _LINEAR
from cpu_kernels.dense import linear

NAMES = (_ATTENTION, _LINEAR)  # of the custom calls

__all__ = ["NAMES", "attention", "linear"]
