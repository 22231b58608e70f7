"""SplitModel: a model cut into groups of consecutive layers, so that groups share programs.

A program grows with the layers in it, and so do the times to compile and to load it. Groups whose
layers are alike run through one program, each with its own parameters and KV pages.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
from flax import nnx

from jaxserve.engine.device.cache_layout import CacheLayout
from jaxserve.engine.device.model_outline import ModelOutline
from jaxserve.models.decoder import Decoder
from jaxserve.models.weights import Adapted

# Layers of a group on a CPU, where a call costs less than a layer's share of a program's load. A
# GPU runs all layers in one program, so that one command buffer covers them.
CPU_GROUP_LAYERS = range(4, 9)


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Consecutive layers.

    Args:
        layers: their indices.
        leaves: indices of their parameters among the model's leaves.
        buffers: indices of the pool's buffers that they use.
        places: each layer's cache group, and the index of its buffer in `buffers`.
        kind: index of the first group whose layers are like these, and whose program this group
            runs.
    """

    layers: range
    leaves: tuple[int, ...]
    buffers: tuple[int, ...]
    places: tuple[tuple[int, int], ...]
    kind: int

    def select(self, pages: list[Any]) -> list[Any]:
        """This group's entries of a list with one entry a buffer."""
        return [pages[i] for i in self.buffers]


class SplitParams(NamedTuple):
    """A model's parameters as its programs take them.

    Args:
        outer: those of no layer: embedding, last norm, head.
        groups: those of each layer group.
        head: as `outer`, for the programs that use the head. With adapters, what an adapter
            changes comes after the parameters, and so the two differ.
    """

    outer: list[Any]
    groups: list[list[Any]]
    head: list[Any]


@dataclass(frozen=True, slots=True)
class SplitModel:
    """A model whose parameters are passed in parts.

    Args:
        graphdef, structure, shapes: see ModelOutline.
        outer: indices of the leaves that belong to no layer.
    """

    graphdef: nnx.GraphDef
    structure: jax.tree_util.PyTreeDef
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    outer: tuple[int, ...]
    groups: tuple[LayerGroup, ...]

    @classmethod
    def split(cls, model: ModelOutline, layout: CacheLayout, sizes: range) -> SplitModel:
        """Cuts a model into groups of one of these sizes: the one that needs the least code."""
        shapes = model.shapes
        abstract = jax.tree.unflatten(model.structure, shapes)
        paths = jax.tree_util.tree_flatten_with_path(abstract)[0]
        outer: list[int] = []
        owned: list[list[int]] = [[] for _ in model.cache_specs]
        for i, (path, _) in enumerate(paths):
            head, *rest = (getattr(entry, "key", None) for entry in path)
            (owned[rest[0]] if head == "layers" else outer).append(i)  # type: ignore[index]
        decoder: Decoder = nnx.merge(model.graphdef, abstract)
        keys = [
            (
                nnx.split(layer)[0],
                jax.tree.structure(nnx.split(layer)[1]),  # the schemes of stored weights
                decoder.config.layers[i].rope,
                tuple((shapes[leaf].shape, shapes[leaf].dtype) for leaf in owned[i]),
                model.cache_specs[i],
                layout.group_of[i],
            )
            for i, layer in enumerate(decoder.layers)
        ]
        first: dict[Hashable, int] = {}
        groups = []
        for n, layers in enumerate(cut_layers(keys, sizes)):
            leaves = tuple(leaf for i in layers for leaf in owned[i])
            buffers = tuple(dict.fromkeys(layout.buffer_of[i] for i in layers))
            places = tuple((layout.group_of[i], buffers.index(layout.buffer_of[i])) for i in layers)
            kind = first.setdefault((places, *(keys[i] for i in layers)), n)
            groups.append(LayerGroup(layers, leaves, buffers, places, kind))
        return cls(model.graphdef, model.structure, shapes, tuple(outer), tuple(groups))

    def split_params(self, leaves: Sequence[Any]) -> SplitParams:
        """All of the model's leaves, in parts."""
        outer = [leaves[i] for i in self.outer]
        return SplitParams(
            outer, [[leaves[i] for i in group.leaves] for group in self.groups], outer
        )

    def merge(
        self,
        indices: Sequence[int],
        leaves: Sequence[jax.Array],
        adapters: Mapping[Any, Any] = MappingProxyType({}),
    ) -> Decoder:
        """The model with these leaves in place. The others stay abstract, so that only the parts
        whose leaves are given can be computed.

        Args:
            adapters: path of a matrix -> the stack of adapters on it, and the batch's AdapterRows.
        """
        filled: list[jax.Array | jax.ShapeDtypeStruct] = list(self.shapes)
        for i, leaf in zip(indices, leaves, strict=True):
            filled[i] = leaf
        state = jax.tree.unflatten(self.structure, filled)
        if adapters:
            flat: dict[Any, Any] = dict(nnx.to_flat_state(state))
            for path, (stack, rows) in adapters.items():
                adapted = Adapted(flat[path].get_value(), stack, rows)
                flat[path] = flat[path].replace(adapted)
            state = nnx.from_flat_state(flat)
        return nnx.merge(self.graphdef, state)


def cut_layers(keys: Sequence[Hashable], sizes: range) -> list[range]:
    """Cuts layers into runs of one of these sizes, so that the runs that differ hold the fewest
    layers together.

    Args:
        keys: one a layer; layers with equal keys are alike.
    """
    count = len(keys)

    def runs(size: int) -> list[range]:
        return [range(i, min(i + size, count)) for i in range(0, count, size)]

    def different(size: int) -> int:
        return sum(map(len, {tuple(keys[i] for i in run) for run in runs(size)}))

    return runs(min(sizes, key=different))
