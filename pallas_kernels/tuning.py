"""Block sizes of the Triton kernels: one small table, with the reason for each entry.

`python -m bench.kernels.tune` times the candidates on a GPU and prints entries for this table. No
entry has been timed on a device yet: each is the largest tile that compiles for sm_80 and sm_90
without register spills (`make kernels`), from which a sweep starts.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Blocks:
    """Block sizes of one kernel.

    Args:
        rows: rows of the score tile; (tokens x query heads of a group) are padded to this.
        keys: context tokens per step of the loop.
        num_warps: warps per program.
        num_stages: depth of the software pipeline of the loop's loads.
    """

    rows: int
    keys: int
    num_warps: int
    num_stages: int


# The tables are keyed by the head size, padded to a power of two.
#
# A decode program holds one token's group of heads; 16 rows are the minimum of a tensor core. Short
# steps and few warps let several programs share a multiprocessor, so that their loads overlap. The
# first two stages of the pipeline fetch the page number; with five stages the keys and values of
# two steps are in flight, with four those of one. At head size 128, 32 keys take 128 registers,
# which allows four programs per multiprocessor: 64 sequences with 8 kv heads run all at once on an
# H100. 64 keys take 152 registers, which allows three.
_DECODE = {
    64: Blocks(rows=16, keys=64, num_warps=4, num_stages=5),
    128: Blocks(rows=16, keys=32, num_warps=4, num_stages=5),
    256: Blocks(rows=16, keys=32, num_warps=8, num_stages=5),  # 4 warps spill on sm_80
}
# 64 keys of 8 bits are as many bytes as 32 of 16 bits, and take 114 registers. With 32 keys, ptxas
# limits itself to 80 registers on sm_90 and spills when the context is split.
_DECODE_8_BITS = _DECODE | {128: Blocks(rows=16, keys=64, num_warps=4, num_stages=5)}

# With 128 rows, prefill reuses both operands of the dot often enough to be compute-bound. 8 warps,
# because 4 spill. At head size 256, the accumulator of 128 rows would take all registers.
_PREFILL = {
    64: Blocks(rows=128, keys=64, num_warps=8, num_stages=3),
    128: Blocks(rows=128, keys=64, num_warps=8, num_stages=2),
    256: Blocks(rows=64, keys=32, num_warps=8, num_stages=2),
}
# Widening 8-bit numbers and masking padded lanes take registers too, so that 64 keys spill.
_PREFILL_MORE_REGISTERS = {
    64: Blocks(rows=128, keys=32, num_warps=8, num_stages=2),
    128: Blocks(rows=128, keys=32, num_warps=8, num_stages=2),
    256: Blocks(rows=64, keys=32, num_warps=8, num_stages=2),
}

# float32 products run on the CUDA cores, not the tensor cores, and need small tiles.
_FLOAT32 = Blocks(rows=16, keys=32, num_warps=4, num_stages=1)

# Programs that fill the GPU: two for each of the 132 multiprocessors of an H100 or H200.
FULL_GRID = 264
# Tokens of context of a part: at least so many that its loads outweigh the partial result that it
# writes; where sequences alone fill the GPU, so many that only a sequence that would still run when
# the others have finished is divided.
SPLIT_MIN = 256
SPLIT_MAX = 8192


def decode_blocks(head_dim: int, itemsize: int, kv_itemsize: int) -> Blocks:
    """Block sizes for sequences with one query token; item sizes of queries and pool in bytes."""
    if itemsize == 4:
        return _FLOAT32
    return (_DECODE_8_BITS if kv_itemsize == 1 else _DECODE)[_padded(head_dim)]


def prefill_blocks(head_dim: int, itemsize: int, kv_itemsize: int) -> Blocks:
    """Block sizes for sequences with several query tokens; arguments as for `decode_blocks`."""
    if itemsize == 4:
        return _FLOAT32
    padded = _padded(head_dim)
    return (_PREFILL if padded == head_dim and kv_itemsize > 1 else _PREFILL_MORE_REGISTERS)[padded]


def _padded(head_dim: int) -> int:
    return max(64, 1 << (head_dim - 1).bit_length())


@dataclass(frozen=True, slots=True)
class Splits:
    """How the contexts of decodes are divided among programs.

    Args:
        extra: programs of each kv head beside one for each sequence; 0: no context is divided.
        shortest: tokens of context of the shortest part.
    """

    extra: int
    shortest: int


def splits(num_sequences: int, num_kv_heads: int, max_context: int) -> Splits:
    """The division for a batch of at most so many decodes. With enough sequences to fill the GPU,
    only contexts much longer than the others are divided."""
    extra = -(-FULL_GRID // num_kv_heads)
    shortest = SPLIT_MIN if num_sequences < extra else SPLIT_MAX
    return Splits(min(extra, num_sequences * (-(-max_context // shortest) - 1)), shortest)
