"""Block sizes of the Triton kernels: one small table, with the reason beside each entry.

`python -m bench.kernels.tune` times the candidates on a GPU and prints entries for this table. None
has been timed on a device yet: each is the largest tile that compiles for sm_80 and sm_90 with no
spilled register (`make kernels`), which is where a sweep starts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Blocks:
    """How one kernel cuts its work.

    Args:
        rows: rows of the score tile: (tokens x query heads of a group), padded to this.
        keys: context tokens a step of the loop takes.
        num_warps: warps a program.
        num_stages: depth of the software pipeline of the loop's loads.
    """

    rows: int
    keys: int
    num_warps: int
    num_stages: int


# A decode program holds one token's group of heads: 16 rows are the least that a tensor core takes.
# Short steps and few warps keep several programs on a multiprocessor, whose loads overlap. The
# pipeline's first two stages fetch the page's number; only from five on are two steps of keys and
# values in flight (four: one). At head size 128, 32 keys take 128 registers: four programs a
# multiprocessor, so that 64 sequences with 8 kv heads run all at once on an H100; 64 keys take
# 152: three.
# Tables are keyed by the head size, padded to a power of two.
_DECODE = {
    64: Blocks(rows=16, keys=64, num_warps=4, num_stages=5),
    128: Blocks(rows=16, keys=32, num_warps=4, num_stages=5),
    256: Blocks(rows=16, keys=32, num_warps=8, num_stages=5),  # 4 warps spill on sm_80
}
# 64 keys of 8 bits are as many bytes as 32 of 16, and take 114 registers; ptxas holds 32 keys to 80
# on sm_90, and spills when the context is split.
_DECODE_8_BITS = _DECODE | {128: Blocks(rows=16, keys=64, num_warps=4, num_stages=5)}

# 128 rows of prefill feed both operands of the dot often enough to be bound by it; 8 warps, as 4
# spill. At 256 the accumulator alone would take the registers of 128 rows.
_PREFILL = {
    64: Blocks(rows=128, keys=64, num_warps=8, num_stages=3),
    128: Blocks(rows=128, keys=64, num_warps=8, num_stages=2),
    256: Blocks(rows=64, keys=32, num_warps=8, num_stages=2),
}
# Widening 8-bit cells and masking padded lanes take registers too: 64 keys spill.
_PREFILL_MORE_REGISTERS = {
    64: Blocks(rows=128, keys=32, num_warps=8, num_stages=2),
    128: Blocks(rows=128, keys=32, num_warps=8, num_stages=2),
    256: Blocks(rows=64, keys=32, num_warps=8, num_stages=2),
}

# float32 goes through the plain (not the tensor) cores, which need small tiles.
_FLOAT32 = Blocks(rows=16, keys=32, num_warps=4, num_stages=1)

# Programs that fill the chip: two for each of the 132 multiprocessors of an H100 or H200.
FULL_GRID = 264
# Context a split takes at least, so that its loads outweigh the partial result it writes; and at
# most, so that one long sequence among many short ones doesn't run on alone.
SPLIT_MIN = 256
SPLIT_MAX = 8192


def decode_blocks(head_dim: int, itemsize: int, kv_itemsize: int) -> Blocks:
    """Of the kernel for sequences with one query token; itemsizes in bytes, of queries and pool."""
    if itemsize == 4:
        return _FLOAT32
    return (_DECODE_8_BITS if kv_itemsize == 1 else _DECODE)[_padded(head_dim)]


def prefill_blocks(head_dim: int, itemsize: int, kv_itemsize: int) -> Blocks:
    """Of the kernel for sequences with several query tokens."""
    if itemsize == 4:
        return _FLOAT32
    padded = _padded(head_dim)
    return (_PREFILL if padded == head_dim and kv_itemsize > 1 else _PREFILL_MORE_REGISTERS)[padded]


def _padded(head_dim: int) -> int:
    return max(64, 1 << (head_dim - 1).bit_length())


def max_splits(num_sequences: int, num_kv_heads: int, max_context: int) -> int:
    """Programs that one decode's context may be split over."""
    fill = -(-FULL_GRID // (num_sequences * num_kv_heads))
    return max(min(fill, -(-max_context // SPLIT_MIN)), -(-max_context // SPLIT_MAX))
