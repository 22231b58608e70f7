"""Shapes of the tiles that a matrix product is computed in, by what the processor has."""

from __future__ import annotations

from dataclasses import dataclass

import llvmlite.binding
import numba

CACHE_LINE = 64  # bytes
GRAIN = 16  # columns of every tile are a multiple of it


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows times columns whose sums stay in registers while the inputs are gone through.

    Args:
        lanes: floats in a register.
        rows: most rows of a tile.
        columns: columns of a tile, a multiple of GRAIN.
        chunk: most inputs of one sum of products. So many rows of the columns stay in the
            first-level cache while they are multiplied by one tile of rows after the other.
        fused_rows: most rows for which codes are widened in registers and multiplied at once,
            which leaves fewer registers to the sums.
    """

    lanes: int
    rows: int
    columns: int
    chunk: int
    fused_rows: int

    @property
    def vectors(self) -> int:
        """Registers that a row of the columns fills."""
        return self.columns // self.lanes


# The first whose features the processor has. Of AVX2's 16 registers 12 hold sums, 2 hold columns
# and one holds an element of a row. AVX-512 has 32 registers: 8 rows divide the usual numbers of
# rows, and their 16 sums cover the latency of two units that multiply and add.
TILES = (
    ({"avx512f", "avx512vl"}, Tile(lanes=16, rows=8, columns=32, chunk=192, fused_rows=8)),
    (set(), Tile(lanes=8, rows=6, columns=16, chunk=320, fused_rows=2)),
)


def processor_features() -> frozenset[str]:
    """What numba compiles for: this processor's features, or those of NUMBA_CPU_FEATURES."""
    if numba.config.CPU_FEATURES is not None:
        flags = str(numba.config.CPU_FEATURES).split(",")
        return frozenset(flag[1:] for flag in flags if flag.startswith("+"))
    features = llvmlite.binding.get_host_cpu_features()
    return frozenset(name for name, present in features.items() if present)


def choose(features: frozenset[str]) -> Tile:
    """The tile for a processor with these features, by LLVM's names."""
    return next(tile for needed, tile in TILES if needed <= features)


TILE = choose(processor_features())
