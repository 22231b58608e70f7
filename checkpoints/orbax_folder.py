"""Reads and writes Orbax folders. They hold the model's own parameters, so that each is read
straight to its device.

A folder has config.json, the tokenizer's files, `params/` with one Orbax checkpoint a layer (so
that host memory never holds more than one layer), and jaxserve.json, which lists all parameters and
is written last.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable, Hashable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import NamedSharding, PartitionSpec, Sharding, SingleDeviceSharding
from tqdm import tqdm

from checkpoints import int8
from checkpoints.checkpoint import Checkpoint, Shapes
from checkpoints.json_file import read_json
from checkpoints.safetensors_folder import read_config
from checkpoints.weight_map import sources
from jaxserve.config import MIB
from jaxserve.errors import CheckpointError, ConfigError
from jaxserve.models.sharding import Shardings

MANIFEST = "jaxserve.json"
_FORMAT = 2
_CHUNK_BYTES = 64 * MIB  # unit of reading; a device reads only the chunks of its own part

ParameterPath = tuple[Hashable, ...]


class OrbaxCheckpoint(Checkpoint):
    """A folder written by `write`. Its tensors are parameters, named by paths joined by dots."""

    def __init__(self, path: Path) -> None:
        self.path = path
        manifest = read_json(path / MANIFEST)
        if manifest.get("format") != _FORMAT:
            raise CheckpointError(f"{path / MANIFEST}: its format isn't {_FORMAT}")
        self.config = read_config(path)
        self._tensors: dict[str, dict[str, Any]] = manifest["tensors"]
        expected = set(map(_name, sources(self.config)))
        expected |= {n + int8.SUFFIX for n in expected if n in self._tensors and self._is_int8(n)}
        for name in sorted(expected):
            if name not in self._tensors:
                raise CheckpointError(f"{path}: the tensor {name} is missing")
        for name in sorted(self._tensors.keys() - expected):
            raise CheckpointError(f"{path}: the tensor {name} is not part of the model")
        self._restored: dict[str, jax.Array] = {}

    def shapes(self) -> Shapes:
        return {name: tuple(entry["shape"]) for name, entry in self._tensors.items()}

    @property
    def nbytes(self) -> int:
        return sum(
            math.prod(entry["shape"]) * jnp.dtype(entry["dtype"]).itemsize
            for entry in self._tensors.values()
        )

    def read(self, name: str) -> np.ndarray:
        if name not in self._tensors:
            raise CheckpointError(f"{self.path}: there is no tensor {name}")
        return np.asarray(self._restore(_group(name), [name], {})[name])

    def parameter(self, path: ParameterPath, shardings: Shardings | None = None) -> jax.Array:
        name = _name(path)
        if name not in self._restored:
            where = {_name(path): sharding for path, sharding in (shardings or {}).items()}
            group = _group(name)
            names = [n for n in self._tensors if _group(n) == group]
            self._restored = self._restore(group, names, where)
        value = self._restored.pop(name)
        if self._is_int8(name):
            value = value.astype(jnp.float32) * self._restored.pop(name + int8.SUFFIX)
        return value

    def describe(self, path: ParameterPath) -> str:
        return _name(path)

    def _is_int8(self, name: str) -> bool:
        return bool(self._tensors[name]["dtype"] == "int8")

    def _restore(
        self, group: str, names: list[str], shardings: Mapping[str, NamedSharding]
    ) -> dict[str, jax.Array]:
        """Tensors of a group, each on the devices of its sharding, or on the first device."""
        alone = SingleDeviceSharding(jax.devices()[0])
        item, arguments = {}, {}
        for name in names:
            shape = tuple(self._tensors[name]["shape"])
            item[name] = jax.ShapeDtypeStruct(shape, jnp.dtype(self._tensors[name]["dtype"]))
            where: Sharding = shardings.get(name, alone)
            weight = shardings.get(name.removesuffix(int8.SUFFIX))
            if name not in shardings and weight is not None:  # the scale of a weight
                spec = [s if n > 1 else None for s, n in zip(weight.spec, shape, strict=True)]
                where = NamedSharding(weight.mesh, PartitionSpec(*spec))
            arguments[name] = ocp.ArrayRestoreArgs(sharding=where)
        try:
            with ocp.Checkpointer(_handler()) as checkpointer:
                return checkpointer.restore(
                    (self.path / "params" / group).absolute(),
                    args=ocp.args.PyTreeRestore(item, arguments, partial_restore=True),
                )
        except Exception as error:  # Orbax and TensorStore raise many kinds
            if len(names) == 1:
                reason = str(error).splitlines()[0][:200]
                raise CheckpointError(
                    f"{self.path}: the tensor {names[0]} is missing or damaged ({reason})"
                ) from error
            for name in names:  # one by one, to find which is damaged
                self._restore(group, [name], shardings)
            raise


def write(
    checkpoint: Checkpoint,
    target: Path,
    dtype: jnp.dtype | None,
    add_files: Callable[[Path], None],
    progress: bool = False,
) -> None:
    """Writes a checkpoint's parameters as an Orbax folder; after an error there is no target.

    Args:
        dtype: of the parameters; None keeps the stored one. int8 applies to the layers' matrices
            (see int8.py), other parameters keep their type.
        add_files: writes config.json and the tokenizer's files into a folder.

    Raises:
        ConfigError: target exists already.
        CheckpointError: a tensor of the checkpoint is damaged.
    """
    if target.exists():
        raise ConfigError(f"{target} exists already: remove it or choose another name")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        add_files(temporary)
        tensors = _write_parameters(checkpoint, temporary / "params", dtype, progress)
        manifest = {"format": _FORMAT, "tensors": tensors}
        with (temporary / MANIFEST).open("w") as file:
            json.dump(manifest, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(0o755)
        os.rename(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _write_parameters(
    checkpoint: Checkpoint, folder: Path, dtype: jnp.dtype | None, progress: bool
) -> dict[str, dict[str, Any]]:
    folder.mkdir()
    tensors = {}
    paths = sorted(checkpoint.parameters(), key=lambda path: (_group(_name(path)), _name(path)))
    with tqdm(desc="convert", unit="B", unit_scale=True, disable=not progress) as bar:
        for group, members in groupby(paths, key=lambda path: _group(_name(path))):
            tree: dict[str, np.ndarray] = {}
            for path in members:
                value = np.ascontiguousarray(checkpoint.parameter(path))
                if not np.isfinite(value).all():
                    raise CheckpointError(
                        f"{checkpoint.path}: NaN or infinite values in {checkpoint.describe(path)}"
                    )
                tree |= _stored(_name(path), value, dtype)
            with ocp.Checkpointer(_handler()) as checkpointer:
                arguments = {n: ocp.SaveArgs(chunk_byte_size=_CHUNK_BYTES) for n in tree}
                checkpointer.save(
                    (folder / group).absolute(), args=ocp.args.PyTreeSave(tree, arguments)
                )
            for name, value in tree.items():
                tensors[name] = {"shape": list(value.shape), "dtype": str(value.dtype)}
                bar.update(value.nbytes)
    return tensors


def _stored(name: str, value: np.ndarray, dtype: jnp.dtype | None) -> dict[str, np.ndarray]:
    """The tensors as which a parameter is stored, by name."""
    if dtype == jnp.int8:
        axes = int8.contracted(name)
        if axes is None:
            return {name: value}
        quantized, scales = int8.quantize(value, axes)
        return {name: quantized, name + int8.SUFFIX: scales}
    return {name: value if dtype is None else value.astype(dtype)}


def _handler() -> ocp.PyTreeCheckpointHandler:
    return ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True)


def _name(path: ParameterPath) -> str:
    return ".".join(map(str, path))


def _group(name: str) -> str:
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "layers" else "outside"
