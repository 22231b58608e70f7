"""The header of a GGUF file: metadata and the list of tensors. Standard library only, since the
server process reads vocabularies with it; 49,152 tokens take some tens of milliseconds.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3).
"""

from __future__ import annotations

import mmap
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from jaxserve.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError

_MAGIC = b"GGUF"
_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_PART = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.gguf")

T = TypeVar("T")
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """A tensor's type and place in a file.

    Args:
        path: the file; a model in several parts has one for each.
        shape: slowest dimension first, as in NumPy; the file has the reverse order.
        ggml_type: number of the GGML type.
        offset: bytes from the beginning of the file.
    """

    path: Path
    name: str
    shape: tuple[int, ...]
    ggml_type: int
    offset: int


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """Metadata by key (arrays as lists), and tensors by the file's own names."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]

    def require(self, key: str, kind: type[T]) -> T:
        """A metadata value. An array of equal numbers, one for each layer, counts as the number.

        Raises:
            CheckpointError: the file doesn't have it, or it is of another type.
        """
        if key not in self.metadata:
            raise CheckpointError(f"{self.path}: the GGUF metadata has no {key}")
        value = self.metadata[key]
        if kind in (int, float, bool) and isinstance(value, list) and value:
            if any(item != value[0] for item in value):
                raise UnsupportedModelError(
                    f"{self.path}: {key} differs from layer to layer, which isn't implemented"
                )
            value = value[0]
        if not isinstance(value, kind):
            raise CheckpointError(f"{self.path}: {key} isn't {kind.__name__}: {str(value)[:80]!r}")
        return value

    def get(self, key: str, kind: type[T], default: D) -> T | D:
        """As require(), or the default if the file doesn't have it."""
        return self.require(key, kind) if key in self.metadata else default

    def token_id(self, name: str) -> int | None:
        """The id that the vocabulary gives a special token (`bos`, `eos`, `eot`, ...), if any."""
        key = f"tokenizer.ggml.{name}_token_id"
        token_id = self.get(key, int, None)
        if token_id is not None and token_id >= len(self.require("tokenizer.ggml.tokens", list)):
            raise CheckpointError(f"{self.path}: {key} is {token_id}, past the vocabulary's end")
        return token_id


def read_header(path: Path) -> GGUFHeader:
    """Reads everything that comes before the tensors' data; for a model in parts, of all parts.

    Args:
        path: the file, or the first one of several (`...-00001-of-00003.gguf`).

    Raises:
        ModelNotFoundError: there is no such file.
        CheckpointError: it isn't a GGUF file, or its header is damaged or cut off.
    """
    header = _read_file(path)
    count, number = (header.get(f"split.{key}", int, 0) for key in ("count", "no"))
    if count <= 1:
        return header
    names = part_names(path.name)
    if number != 0 or len(names) != count or names[0] != path.name:
        raise CheckpointError(
            f"{path}: part {number + 1} of {count}; give the first part, under the name that ends "
            f"in -00001-of-{count:05}.gguf"
        )
    for name in names[1:]:
        part = _read_file(path.with_name(name))
        if twice := header.tensors.keys() & part.tensors.keys():
            raise CheckpointError(f"{part.path}: the tensor {min(twice)} is in another part too")
        header.tensors.update(part.tensors)
    return header


def part_names(name: str) -> list[str]:
    """The names of all parts of the model that a GGUF file's name is a part of, in order."""
    if (match := _PART.fullmatch(name)) is None:
        return [name]
    count = int(match["count"])
    return [f"{match['stem']}-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1)]


def _read_file(path: Path) -> GGUFHeader:
    try:
        with path.open("rb") as file:
            if file.read(4) != _MAGIC:
                raise CheckpointError(f"{path}: not a GGUF file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _parse(path, data)
    except FileNotFoundError:
        raise ModelNotFoundError(f"{path}: no such file") from None
    except (struct.error, EOFError, UnicodeDecodeError, KeyError, RecursionError) as error:
        raise CheckpointError(f"{path}: damaged or truncated GGUF header ({error})") from None


def _parse(path: Path, data: mmap.mmap) -> GGUFHeader:
    cursor = _Cursor(data)
    version = cursor.scalar("I")
    if version not in (2, 3):
        raise CheckpointError(f"{path}: GGUF version {version} isn't supported; 2 and 3 are")
    num_tensors, num_keys = cursor.scalar("Q"), cursor.scalar("Q")
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar("I"))
    entries = []
    for _ in range(num_tensors):
        name = cursor.string()
        dims = cursor.scalars("Q", cursor.scalar("I"))
        entries.append((name, dims[::-1], cursor.scalar("I"), cursor.scalar("Q")))
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise CheckpointError(f"{path}: general.alignment is {alignment!r}")
    start = -(-cursor.position // alignment) * alignment
    tensors = {
        name: GGUFTensor(path, name, shape, kind, start + offset)
        for name, shape, kind, offset in entries
    }
    return GGUFHeader(path, metadata, tensors)


class _Cursor:
    """Reads little-endian values one after another; each read is checked against the file's end."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.position = len(_MAGIC)

    def scalar(self, code: str) -> Any:
        return self.scalars(code, 1)[0]

    def scalars(self, code: str, count: int) -> tuple[Any, ...]:
        size = struct.calcsize("<" + code)
        self._check(count * size)
        values = struct.unpack_from(f"<{count}{code}", self._data, self.position)
        self.position += count * size
        return values

    def string(self) -> str:
        length = self.scalar("Q")
        self._check(length)
        start, self.position = self.position, self.position + length
        return self._data[start : self.position].decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(_SCALARS[kind])
        item_kind, count = self.scalar("I"), self.scalar("Q")
        if item_kind in _SCALARS:
            return list(self.scalars(_SCALARS[item_kind], count))
        if item_kind == _STRING:
            return self._strings(count)
        return [self.value(item_kind) for _ in range(count)]

    def _strings(self, count: int) -> list[str]:
        """Calls of string(), `count` of them, inlined: a vocabulary has 100,000."""
        data, position = self._data, self.position
        unpack = struct.Struct("<Q").unpack_from
        strings = []
        for _ in range(count):
            start = position + 8
            position = start + unpack(data, position)[0]
            strings.append(data[start:position].decode("utf-8"))
        self.position = position
        self._check(0)
        return strings

    def _check(self, size: int) -> None:
        if self.position + size > len(self._data):
            raise EOFError(f"{size} bytes at {self.position} reach past the end")
