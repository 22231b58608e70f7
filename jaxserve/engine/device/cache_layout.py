"""CacheLayout: which block table and which buffer of the pool each layer uses.

Layers that declare the same cache form one cache group or several. All groups take their blocks
from one pool: the i-th layer of every group keeps its blocks in buffer i, and a block belongs to
one group in all buffers at once. The pool has therefore as many buffers as the largest group has
layers. The cost: in the blocks of a smaller group, the buffers past its last layer are unused.
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxserve.models.cache import CacheSpec
from scheduler import CacheGroup

# Each group costs the scheduler and every step's upload a block table.
MAX_GROUPS = 8
MIN_SAVING = 0.05  # share of the memory that a further group must save


@dataclass(frozen=True, slots=True)
class CacheLayout:
    """A partition of the layers.

    Args:
        groups: as the scheduler takes them.
        group_of, buffer_of: of each layer, in order.
        buffers: for each buffer, the cache spec of the layers that use it.
    """

    groups: tuple[CacheGroup, ...]
    group_of: tuple[int, ...]
    buffer_of: tuple[int, ...]
    buffers: tuple[CacheSpec, ...]

    @classmethod
    def choose(
        cls,
        specs: tuple[CacheSpec, ...],
        block_size: int,
        max_model_len: int,
        max_num_batched_tokens: int,
    ) -> CacheLayout:
        """The layout in which the longest sequence takes least memory, of those with at most
        MAX_GROUPS groups.

        Layers with the same window are a kind. The number of layers of each kind is tried as the
        size of all groups; so is a single group that keeps what the widest window needs.

        Args:
            specs: what each layer declares.
            max_model_len: a window at least this long counts as none.
        """
        windows = [
            None if s.window is None or s.window >= max_model_len else s.window for s in specs
        ]
        if len({(s.num_kv_heads, s.head_dim) for s in specs}) > 1:
            # Layers whose blocks differ in size can't share a buffer.
            return cls._cut(specs, [_widest(windows)] * len(specs), len(specs))
        sizes = {windows.count(window) for window in windows}
        layouts = [cls._cut(specs, [_widest(windows)] * len(specs), len(specs))]
        layouts += [cls._cut(specs, windows, size) for size in sorted(sizes, reverse=True)]
        num_blocks = -(-max_model_len // block_size)

        def cost(layout: CacheLayout) -> float:
            held = [
                g.most_blocks(num_blocks, block_size, max_num_batched_tokens) for g in layout.groups
            ]
            return sum(held) * len(layout.buffers) * (1 + MIN_SAVING * len(layout.groups))

        return min((x for x in layouts if len(x.groups) <= MAX_GROUPS), key=cost)

    @classmethod
    def _cut(
        cls, specs: tuple[CacheSpec, ...], windows: list[int | None], size: int
    ) -> CacheLayout:
        """Groups of at most `size` layers with one window each."""
        groups: list[CacheGroup] = []
        places: dict[int, tuple[int, int]] = {}  # layer: (group, buffer)
        for window in dict.fromkeys(windows):
            layers = [i for i, own in enumerate(windows) if own == window]
            # Adjacent layers go to different groups, so that in a stack that repeats a pattern of
            # layers each repeat has a buffer of its own, and is like the others (see layer_groups).
            whole, first = len(layers) // size, len(groups)
            for nth, layer in enumerate(layers):
                buffer, group = (
                    divmod(nth, whole) if nth < whole * size else (nth - whole * size, whole)
                )
                places[layer] = (first + group, buffer)
            groups += [CacheGroup(window)] * -(-len(layers) // size)
        group_of, buffer_of = zip(*(places[i] for i in range(len(specs))), strict=True)
        holder = dict(zip(buffer_of, specs, strict=True))
        buffers = tuple(holder[i] for i in range(len(holder)))
        return cls(tuple(groups), group_of, buffer_of, buffers)


def _widest(windows: list[int | None]) -> int | None:
    known = [window for window in windows if window is not None]
    return max(known) if len(known) == len(windows) else None
