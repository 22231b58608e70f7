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
from jax.sharding import NamedSharding, SingleDeviceSharding
from tqdm import tqdm

from checkpoints.checkpoint import Checkpoint, Shapes
from checkpoints.json_file import naming, read_json
from checkpoints.safetensors_folder import read_config
from checkpoints.stored.manifest import arrays_of, entry_of, rebuild
from checkpoints.stored.quantized import as_parameter
from checkpoints.weight_map import sources
from jaxserve.config import MIB
from jaxserve.errors import CheckpointError, ConfigError
from jaxserve.models.sharding import Shardings
from jaxserve.models.weights import Stored, is_finite, widened

MANIFEST = "jaxserve.json"
_FORMAT = 3
_CHUNK_BYTES = 64 * MIB  # unit of reading; a device reads only the chunks of its own part

# Types that TensorStore may not know.
_AS_BYTES = (jnp.dtype(jnp.float8_e4m3fn),)

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
        self._entries: dict[str, dict[str, Any]] = manifest.get("stored", {})
        self._forms: dict[str, Stored] = {}
        expected: set[str] = set()
        for name in map(_name, sources(self.config)):
            if name in self._entries:
                with naming(path / MANIFEST):
                    expected |= arrays_of(name, self._form(name)).keys()
            else:
                expected.add(name)
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
        if name in self._entries:
            values = widened(self.stored_parameter(path), jnp.dtype(jnp.float32))
            return as_parameter(values, self.parameters()[path])
        return self._taken(name, shardings)

    def float_type(self, path: ParameterPath) -> np.dtype:
        name = _name(path)
        return np.dtype(self._tensors[name]["dtype"] if name in self._tensors else np.float32)

    def form(self, path: ParameterPath) -> Stored | None:
        name = _name(path)
        return self._form(name) if name in self._entries else None

    def stored_parameter(self, path: ParameterPath, shardings: Shardings | None = None) -> Stored:
        name = _name(path)
        return rebuild(name, self._entries[name], lambda array: self._taken(array, shardings))

    def _form(self, name: str) -> Stored:
        if name not in self._forms:
            self._forms[name] = rebuild(name, self._entries[name], self._array_form)
        return self._forms[name]

    def _array_form(self, name: str) -> jax.ShapeDtypeStruct:
        if name not in self._tensors:
            raise CheckpointError(f"the tensor {name} is missing")
        entry = self._tensors[name]
        return jax.ShapeDtypeStruct(tuple(entry["shape"]), jnp.dtype(entry["dtype"]))

    def _taken(self, name: str, shardings: Shardings | None) -> jax.Array:
        """A tensor, read with the others of its layer, and let go of here."""
        if name not in self._restored:
            where: dict[str, NamedSharding] = {}
            for path, sharding in (shardings or {}).items():
                if isinstance(sharding, Stored):
                    where |= arrays_of(_name(path), sharding)
                else:
                    where[_name(path)] = sharding
            group = _group(name)
            names = [n for n in self._tensors if _group(n) == group]
            self._restored = self._restore(group, names, where)
        return self._restored.pop(name)

    def describe(self, path: ParameterPath) -> str:
        return _name(path)

    def _restore(
        self, group: str, names: list[str], shardings: Mapping[str, NamedSharding]
    ) -> dict[str, jax.Array]:
        """Tensors of a group, each on the devices of its sharding, or on the first device."""
        alone = SingleDeviceSharding(jax.devices()[0])
        item, arguments = {}, {}
        for name in names:
            shape = tuple(self._tensors[name]["shape"])
            item[name] = jax.ShapeDtypeStruct(shape, self._written_type(name))
            arguments[name] = ocp.ArrayRestoreArgs(sharding=shardings.get(name, alone))
        try:
            with ocp.Checkpointer(_handler()) as checkpointer:
                restored = checkpointer.restore(
                    (self.path / "params" / group).absolute(),
                    args=ocp.args.PyTreeRestore(item, arguments, partial_restore=True),
                )
            return {n: a.view(jnp.dtype(self._tensors[n]["dtype"])) for n, a in restored.items()}
        except Exception as error:  # Orbax and TensorStore raise many kinds
            if len(names) == 1:
                reason = str(error).splitlines()[0][:200]
                raise CheckpointError(
                    f"{self.path}: the tensor {names[0]} is missing or damaged ({reason})"
                ) from error
            for name in names:  # one by one, to find which is damaged
                self._restore(group, [name], shardings)
            raise

    def _written_type(self, name: str) -> jnp.dtype:
        dtype = jnp.dtype(self._tensors[name]["dtype"])
        return jnp.dtype(jnp.uint8) if dtype in _AS_BYTES else dtype


def write(
    checkpoint: Checkpoint,
    target: Path,
    dtype: jnp.dtype | None,
    add_files: Callable[[Path], None],
    progress: bool = False,
) -> None:
    """Writes a checkpoint's parameters as an Orbax folder; after an error there is no target.

    Args:
        dtype: of the parameters, all as floats; None keeps what is stored, quantised or not.
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
        manifest = _write_parameters(checkpoint, temporary / "params", dtype, progress)
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
) -> dict[str, Any]:
    """Returns the manifest."""
    folder.mkdir()
    tensors: dict[str, Any] = {}
    stored: dict[str, Any] = {}
    paths = sorted(checkpoint.parameters(), key=lambda path: (_group(_name(path)), _name(path)))
    with tqdm(desc="convert", unit="B", unit_scale=True, disable=not progress) as bar:
        for group, members in groupby(paths, key=lambda path: _group(_name(path))):
            tree: dict[str, np.ndarray] = {}
            for path in members:
                name = _name(path)
                if dtype is None and checkpoint.form(path) is not None:
                    parameter = checkpoint.stored_parameter(path)
                    stored[name] = entry_of(parameter)
                    tree |= arrays_of(name, jax.tree.map(np.asarray, parameter))
                    good = bool(is_finite(jax.tree.map(jnp.asarray, parameter)))
                else:
                    value = np.ascontiguousarray(checkpoint.parameter(path))
                    good = bool(np.isfinite(value).all())
                    tree[name] = value if dtype is None else value.astype(dtype)
                if not good:
                    raise CheckpointError(
                        f"{checkpoint.path}: NaN or infinite values in {checkpoint.describe(path)}"
                    )
            for name, value in tree.items():
                tensors[name] = {"shape": list(value.shape), "dtype": str(value.dtype)}
                if value.dtype in _AS_BYTES:
                    tree[name] = value.view(np.uint8)
            with ocp.Checkpointer(_handler()) as checkpointer:
                arguments = {n: ocp.SaveArgs(chunk_byte_size=_CHUNK_BYTES) for n in tree}
                checkpointer.save(
                    (folder / group).absolute(), args=ocp.args.PyTreeSave(tree, arguments)
                )
            bar.update(sum(value.nbytes for value in tree.values()))
    return {"format": _FORMAT, "tensors": tensors, "stored": stored}


def _handler() -> ocp.PyTreeCheckpointHandler:
    return ocp.PyTreeCheckpointHandler(use_ocdbt=True, use_zarr3=True)


def _name(path: ParameterPath) -> str:
    return ".".join(map(str, path))


def _group(name: str) -> str:
    parts = name.split(".")
    return ".".join(parts[:2]) if parts[0] == "layers" else "outside"
