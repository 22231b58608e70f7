"""PEFT's folders: adapter_config.json and adapter_model.safetensors, against a model's matrices.

A file is read into memory whole, and everything is checked and hashed there: whoever writes to it
meanwhile harms nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, deserialize

from checkpoints.adapters import peft_config
from checkpoints.adapters.peft_config import PeftConfig, read_peft_config
from checkpoints.adapters.targets import EMBEDDING, HEAD, Target
from checkpoints.json_file import naming
from jaxserve.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from jaxserve.models.weights import LowRank

if TYPE_CHECKING:
    from checkpoints.checkpoint import Checkpoint

WEIGHTS = "adapter_model.safetensors"
DIGEST_BYTES = 32
_HEADER_BYTES = 2**26  # more than the header of any adapter

_TYPES: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}
_KEY = re.compile(
    r"(?:base_model\.model\.)?(?P<module>.+?)\."
    r"(?P<kind>lora_A|lora_B|lora_embedding_A|lora_embedding_B)(?:\.default)?(?:\.weight)?"
)
_TABLE = re.compile(
    r"base_model\.model\.(?P<module>model\.embed_tokens|lm_head)(?:\.base_layer)?\.weight"
)

Pairs = dict[str, dict[str, np.ndarray]]  # by module, then "A" and "B"
Parts = tuple[tuple[LowRank | None, ...], ...]  # of each expert, of each part


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter's numbers.

    Args:
        digest: of its files' contents, 32 bytes.
        rank: the largest of its ranks.
        parts: by Target.key, of the matrices that it changes.
    """

    digest: bytes
    rank: int
    parts: Mapping[tuple[Any, bool], Parts]


def read_adapter(
    path: Path, targets: Iterable[Target], checkpoint: Checkpoint, max_rank: int
) -> Adapter:
    """Reads an adapter for a model.

    Args:
        targets: the matrices that adapters may have here.
        checkpoint: the base model's.
        max_rank: most rank of a matrix.

    Raises:
        ModelNotFoundError: the folder, or a file of it, doesn't exist.
        CheckpointError: it is damaged, or doesn't fit the model; names the tensor.
        UnsupportedModelError: it asks for something that isn't implemented, by name.
    """
    targets = tuple(targets)
    settings = _read(path, peft_config.NAME, peft_config.MAX_BYTES)
    with naming(path / peft_config.NAME):
        config = read_peft_config(settings)
    data = _read(path, WEIGHTS, _most_bytes(targets, max_rank))
    digest = blake2b(digest_size=DIGEST_BYTES)
    for part in (settings, data):
        digest.update(len(part).to_bytes(8, "little") + part)
    with naming(path / WEIGHTS):
        pairs, tables = _pairs(_tensors(data))
        for module, table in tables.items():
            _check_table(module, table, checkpoint)
        parts = _parts(pairs, targets, config, max_rank)
    ranks = (len(one.down) for own in parts.values() for e in own for one in e if one is not None)
    return Adapter(digest.digest(), max(ranks), parts)


def _most_bytes(targets: tuple[Target, ...], max_rank: int) -> int:
    """More than an adapter's file takes, with a copy of both tables in it."""
    sums = [len(t.modules) * (t.inputs * len(t.sizes) + len(t.owner)) for t in targets]
    tables = [t.inputs * len(t.owner) for t in targets if t.modules[0] in ((EMBEDDING,), (HEAD,))]
    return 4 * (max_rank * sum(sums) + 2 * max(tables, default=0)) + _HEADER_BYTES


def _read(folder: Path, name: str, most: int) -> bytes:
    """A file's contents, of which there may be so many bytes at most."""
    file = folder / name
    try:
        if not file.is_file():
            pickled = folder / "adapter_model.bin"
            if name == WEIGHTS and pickled.exists():
                raise UnsupportedModelError(
                    f"{folder}: its weights are pickled, which can run any program; save them as "
                    "safetensors"
                )
            raise ModelNotFoundError(f"{folder}: there is no {name} in it")
        with file.open("rb") as opened:
            data = opened.read(most + 1)
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the path
        raise CheckpointError(f"{file}: can't be read ({error})") from None
    if len(data) > most:
        raise CheckpointError(
            f"{file}: it has more than {most} bytes, which no adapter of this model needs at the "
            "server's largest rank"
        )
    return data


def _tensors(data: bytes) -> dict[str, np.ndarray]:
    try:
        found = deserialize(data)
    except SafetensorError as error:
        raise CheckpointError(f"damaged or truncated ({error})") from None
    tensors = {}
    for name, tensor in found:
        if tensor["dtype"] not in _TYPES:
            raise UnsupportedModelError(
                f"the tensor {name[:200]} is stored as {tensor['dtype']}; "
                f"supported: {', '.join(_TYPES)}"
            )
        flat = np.frombuffer(tensor["data"], _TYPES[tensor["dtype"]])
        tensors[name] = flat.reshape(tensor["shape"])
    return tensors


def _pairs(tensors: Mapping[str, np.ndarray]) -> tuple[Pairs, dict[str, np.ndarray]]:
    """The two matrices of each module, and copies of the base's tables by module."""
    pairs: Pairs = {}
    tables: dict[str, np.ndarray] = {}
    for name, tensor in tensors.items():
        if (found := _TABLE.fullmatch(name)) is not None:
            tables[found["module"]] = tensor
            continue
        found = _KEY.fullmatch(name)
        if found is None:
            raise UnsupportedModelError(
                f"the tensor {name[:200]} is not part of a LoRA of a linear layer or an embedding"
            )
        pair, kind = pairs.setdefault(found["module"], {}), found["kind"][-1]
        if kind in pair:
            raise CheckpointError(f"{found['module']} has two matrices {kind}")
        if tensor.ndim != 2:
            raise CheckpointError(f"the tensor {name} has {tensor.ndim} dimensions, not 2")
        pair[kind] = tensor
    if not pairs:
        raise CheckpointError("there is no adapter in it")
    for module, pair in pairs.items():
        if len(pair) < 2:
            raise CheckpointError(f"{module[:200]} has a matrix {next(iter(pair))} alone")
    return pairs, tables


def _check_table(module: str, table: np.ndarray, checkpoint: Checkpoint) -> None:
    """PEFT saves the base's own tables with adapters that change them; others can't be served."""
    tied = checkpoint.config.tie_word_embeddings
    name = f"{EMBEDDING if tied else module}.weight"
    base = checkpoint.read(name)
    kinds = (base.dtype, table.dtype)
    same = base.shape == table.shape and any(
        np.array_equal(base.astype(kind), table.astype(kind)) for kind in kinds
    )
    if not same:
        raise UnsupportedModelError(
            f"it has a whole {module} that differs from the base model's: that can't be served"
        )


def _parts(
    pairs: Pairs, targets: tuple[Target, ...], config: PeftConfig, max_rank: int
) -> dict[tuple[Any, bool], Parts]:
    """The parts of every target that the adapter changes."""
    left = dict(pairs)
    made: dict[tuple[Any, bool], Parts] = {}
    for target in targets:
        own = _fused(left, target, config, max_rank)
        if own is None:
            own = tuple(
                tuple(
                    _part(left.pop(module, None), module, target, nth, config, max_rank)
                    for nth, module in enumerate(modules)
                )
                for modules in target.modules
            )
        if any(part is not None for several in own for part in several):
            made[target.key] = own
    if left:
        known = sorted({name for target in targets for name in target.names})
        raise UnsupportedModelError(
            f"{sorted(left)[0][:200]} can't have an adapter here; modules that can: "
            f"{', '.join(known)}"
        )
    return made


def _part(
    pair: Mapping[str, np.ndarray] | None,
    module: str,
    target: Target,
    nth: int,
    config: PeftConfig,
    max_rank: int,
) -> LowRank | None:
    if pair is None:
        return None
    down, up = pair["A"], pair["B"]
    rank = len(down)
    _check_rank(module, rank, max_rank)
    wanted = (rank, target.inputs), (target.sizes[nth], rank)
    if (down.shape, up.shape) != wanted:
        raise CheckpointError(
            f"{module} has matrices of shapes {list(down.shape)} and {list(up.shape)} where the "
            f"model asks for {list(wanted[0])} and {list(wanted[1])}"
        )
    return _scaled(module, down, up, config.scale(module, rank))


def _check_rank(module: str, rank: int, max_rank: int) -> None:
    if rank < 1:
        raise CheckpointError(f"{module} has rank 0")
    if rank > max_rank:
        raise UnsupportedModelError(
            f"{module} has rank {rank}, and this server takes at most {max_rank} (--max-lora-rank)"
        )


def _scaled(module: str, down: np.ndarray, up: np.ndarray, scale: float) -> LowRank:
    with np.errstate(over="ignore", invalid="ignore"):
        low = LowRank(down.astype(np.float32), up.astype(np.float32) * np.float32(scale))
    for name, matrix in (("A", low.down), ("B", low.up)):
        if not np.isfinite(matrix).all():
            raise CheckpointError(f"NaN or infinite values in matrix {name} of {module}")
    return low


def _fused(left: Pairs, target: Target, config: PeftConfig, max_rank: int) -> Parts | None:
    """The parts of a parameter that holds all experts' matrices, as PEFT's `target_parameters`
    have them: A is [X * r, I], expert by expert, and B [O, r * X], rank by rank."""
    if target.fused is None:
        return None
    stem, name = target.fused
    experts, outputs = len(target.modules), sum(target.sizes)
    nested = (f"{stem}{'.base_layer' * depth}" for depth in range(2))
    for module in [one for one in nested if one in left]:
        down, up = left[module]["A"], left[module]["B"]
        rank, rest = divmod(len(down), experts)
        if rest or (down.shape[1], up.shape) != (target.inputs, (outputs, len(down))):
            continue
        full = f"{stem}.{name}"
        _check_rank(full, rank, max_rank)
        del left[module]
        low = _scaled(full, down, up, config.scale(full, rank))
        downs = low.down.reshape(experts, rank, -1)
        ups = low.up.reshape(outputs, rank, experts).transpose(2, 0, 1)
        ends = np.cumsum(target.sizes)[:-1]
        return tuple(
            tuple(LowRank(own_down, part) for part in np.split(own_up, ends))
            for own_down, own_up in zip(downs, ups, strict=True)
        )
    return None
