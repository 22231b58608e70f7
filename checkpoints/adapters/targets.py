"""Which matrices of a model adapters may have, and from which of PEFT's modules each is made."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from checkpoints.weight_map import Path, Source, sources
from jaxserve.models.config import ModelConfig

EMBEDDING, HEAD = "model.embed_tokens", "lm_head"


@dataclass(frozen=True, eq=False)
class Target:
    """A matrix [*O, I] of the model, or the same matrix of several experts.

    Args:
        path: of the parameter.
        is_table: the matrix is the embedding, whose rows are taken: I is the vocabulary's.
        modules: of each expert the names of the modules that its parts are, in order; of a matrix
            without experts one entry.
        fused: the module whose one parameter holds all experts' matrices, and the parameter's name;
            None where the family has none.
        sizes: outputs of each part.
        inputs: I.
        outputs: the dimensions O.
        owner: [O], the part of each output.
        place: [O], its row in that part.
    """

    path: Path
    is_table: bool
    modules: tuple[tuple[str, ...], ...]
    fused: tuple[str, str] | None
    sizes: tuple[int, ...]
    inputs: int
    outputs: tuple[int, ...]
    owner: np.ndarray
    place: np.ndarray

    @property
    def key(self) -> tuple[Path, bool]:
        """Tells the embedding from a head that is tied to it."""
        return self.path, self.is_table

    @property
    def names(self) -> frozenset[str]:
        """The last words of its modules' names, as q_proj."""
        words = {name.rpartition(".")[2] for names in self.modules for name in names}
        return frozenset(words if self.fused is None else {*words, self.fused[1]})


@lru_cache(maxsize=4)
def targets(config: ModelConfig) -> tuple[Target, ...]:
    """All of a model's.

    Raises:
        UnsupportedModelError: an unknown architecture.
    """
    found = []
    for path, source in sources(config).items():
        if source.rows is None:
            continue
        if path == ("embed", "embedding"):
            found.append(_embedding(path, config))
            if config.tie_word_embeddings:
                found.append(_head(path, config))
        elif path == ("head", "embedding"):
            found.append(_head(path, config))
        else:
            found.append(_matrix(path, source))
    return tuple(found)


def _embedding(path: Path, config: ModelConfig) -> Target:
    return _whole(path, EMBEDDING, config.hidden_size, config.vocab_size, is_table=True)


def _head(path: Path, config: ModelConfig) -> Target:
    return _whole(path, HEAD, config.vocab_size, config.hidden_size, is_table=False)


def _whole(path: Path, module: str, outputs: int, inputs: int, *, is_table: bool) -> Target:
    owner, place = np.zeros(outputs, np.int32), np.arange(outputs, dtype=np.int32)
    return Target(path, is_table, ((module,),), None, (outputs,), inputs, (outputs,), owner, place)


def _matrix(path: Path, source: Source) -> Target:
    assert source.rows is not None
    numbers = source.outputs()
    tensors = list(source.tensors)
    rows = [int(np.prod(shape)) for shape in source.rows.tensors.values()]
    stem, _, last = tensors[0].rpartition(".")
    experts = source.shape[0] if source.experts else 1
    inputs = int(np.prod([source.shape[i] for i in source.inputs]))
    fused: tuple[str, str] | None = None
    if source.experts:
        numbers = numbers[0]
        if len(tensors) == 1:  # one parameter for all experts
            fused, rows = (stem, last), [rows[0] // experts]
            modules: tuple[tuple[str, ...], ...] = ((),) * experts
        else:
            count = len(tensors) // experts
            names = [name.removesuffix(".weight") for name in tensors]
            modules = tuple(tuple(names[i * count : (i + 1) * count]) for i in range(experts))
            rows = rows[:count]
            prefix = ".".join(names[0].split(".")[:3])  # model.layers.N
            fused = f"{prefix}.mlp.experts", "gate_up_proj" if count > 1 else "down_proj"
    else:
        modules = (tuple(name.removesuffix(".weight") for name in tensors),)
    flat = numbers.reshape(-1)
    starts = np.cumsum([0, *rows])
    owner = np.searchsorted(starts, flat, side="right") - 1
    return Target(
        path=path,
        is_table=False,
        modules=modules,
        fused=fused,
        sizes=tuple(rows),
        inputs=inputs,
        outputs=tuple(numbers.shape),
        owner=owner.astype(np.int32),
        place=(flat - starts[owner]).astype(np.int32),
    )
