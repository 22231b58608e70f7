"""StackShape: the arrays of a matrix's adapter slots, and one adapter's part of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.models.weights.adapters import LowRank, Stack

# Of each expert the adapter's parts, in the order of the matrix's; None where it has none.
Parts = Sequence[Sequence[LowRank | None]]


@dataclass(frozen=True, eq=False)
class StackShape:
    """What the adapters of one matrix take, or of the same matrix of several experts.

    Args:
        rank: most of one part.
        experts: E; 1 for a matrix without experts.
        inputs: I; of a table the numbers V of its rows.
        outputs: the dimensions O.
        owner: [O], the part of the matrix that each output belongs to.
        place: [O], its row in that part.
        is_table: rows are taken, and the adapters' outputs are the table's inputs.
        axes: logical axes of the inputs, and of the dimensions O.
        dtype: of the arrays; on a CPU they are float32.
        on_cpu: whether they lie as the CPU kernels read them.
    """

    rank: int
    experts: int
    inputs: int
    outputs: tuple[int, ...]
    owner: np.ndarray
    place: np.ndarray
    is_table: bool
    axes: tuple[str | None, tuple[str | None, ...]]
    dtype: jnp.dtype
    on_cpu: bool

    @property
    def parts(self) -> int:
        """Parts of the matrix."""
        return int(self.owner.max()) + 1

    def shapes(self, slots: int) -> Stack:
        """Shapes and types of the arrays of so many slots."""
        groups, outputs = slots * self.experts, len(self.owner)
        kind = jnp.dtype(jnp.float32) if self.on_cpu else self.dtype

        def of(*shape: int, dtype: jnp.dtype = kind) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, dtype)

        table = of(slots, self.inputs, self.rank) if self.is_table else None
        wide = self.rank * self.parts
        if not self.on_cpu:
            down = of(groups, 0 if self.is_table else self.inputs, wide)
            return Stack(down, of(groups, wide, *self.outputs), table=table, experts=self.experts)
        from cpu_kernels.tiles import TILE

        touched = self._touched()
        size = 0 if self.is_table else self.inputs * wide + TILE.columns
        up = of(groups, *touched.shape, self.rank, TILE.columns)
        spans = of(groups, self.parts + 1, dtype=jnp.dtype(jnp.int32))
        places = of(*touched.shape, dtype=jnp.dtype(jnp.int32))
        assert outputs <= touched.shape[0] * TILE.columns
        return Stack(of(groups, size), up, spans, places, table, self.experts)

    def zeros(self, slots: int) -> Stack:
        """Empty slots, on the device."""
        shapes = self.shapes(slots)
        made: Stack = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        if not self.on_cpu:
            return made
        touched = jnp.asarray(self._touched())
        return Stack(made.down, made.up, made.spans, touched, made.table, self.experts)

    def packed(self, adapter: Parts) -> Stack:
        """One adapter's numbers as they lie in a slot, in host memory; `touched` is left out."""
        own = jax.tree.map(lambda s: np.zeros(s.shape, s.dtype), self.shapes(1))
        for expert, parts in enumerate(adapter):
            if not any(part is not None for part in parts):
                continue
            (self._fill_cpu if self.on_cpu else self._fill)(own, expert, parts)
        return Stack(own.down, own.up, own.spans, None, own.table, self.experts)

    def _fill(self, own: Stack, expert: int, parts: Sequence[LowRank | None]) -> None:
        up = own.up[expert].reshape(own.up.shape[1], -1)
        for nth, part in enumerate(parts):
            if part is None:
                continue
            first, end = nth * self.rank, nth * self.rank + len(part.down)
            if own.table is None:
                own.down[expert][:, first:end] = part.down.T
            else:
                own.table[0][:, first:end] = part.down.T
            mine = self.owner == nth
            up[first:end, mine] = part.up[self.place[mine]].T

    def _fill_cpu(self, own: Stack, expert: int, parts: Sequence[LowRank | None]) -> None:
        ranks = [0 if part is None else len(part.down) for part in parts]
        own.spans[expert][1:] = np.cumsum(ranks)
        downs = [part.down.T for part in parts if part is not None]
        if downs and own.table is None:
            flat = np.concatenate(downs, 1).reshape(-1)
            own.down[expert][: flat.size] = flat
        elif downs:
            own.table[0][:, : ranks[0]] = downs[0]
        touched, columns = self._touched(), own.up.shape[-1]
        count = len(touched) * columns
        for nth, part in enumerate(parts):
            if part is None:
                continue
            mine = self.owner == nth
            wide = np.zeros((ranks[nth], count), np.float32)
            wide[:, : len(self.owner)][:, mine] = part.up[self.place[mine]].T
            panels = wide.reshape(ranks[nth], len(touched), columns).swapaxes(0, 1)
            for m in range(touched.shape[1]):
                here = touched[:, m] == nth
                own.up[expert][here, m, : ranks[nth]] = panels[here]

    def _touched(self) -> np.ndarray:
        """[P, M] int32, the parts that each panel of the kernel's columns has outputs of."""
        from cpu_kernels.tiles import TILE

        count = -(-len(self.owner) // TILE.columns)
        padded = np.pad(self.owner, (0, count * TILE.columns - len(self.owner)), mode="edge")
        sets = [sorted(set(row)) for row in padded.reshape(count, -1).tolist()]
        most = max(map(len, sets))
        return np.array([own + [-1] * (most - len(own)) for own in sets], np.int32)
