"""The head of a GGUF file: metadata and the list of tensors. Standard library only, since the
server process reads vocabularies with it; 49,152 tokens take some tens of milliseconds.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md (versions 2 and 3).
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from jaxserve.errors import CheckpointError, ModelNotFoundError

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

T = TypeVar("T")
D = TypeVar("D")


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """Where a tensor lies.

    Args:
        shape: slowest dimension first, as NumPy; the file has it the other way round.
        ggml_type: number of the GGML type.
        offset: bytes from the beginning of the file.
    """

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
        """A metadata value.

        Raises:
            CheckpointError: the file doesn't have it, or it is of another type.
        """
        if key not in self.metadata:
            raise CheckpointError(f"{self.path}: the GGUF metadata has no {key}")
        value = self.metadata[key]
        if not isinstance(value, kind):
            raise CheckpointError(f"{self.path}: {key} isn't {kind.__name__}: {str(value)[:80]!r}")
        return value

    def get(self, key: str, kind: type[T], default: D) -> T | D:
        """As require, or the default where the file doesn't have it."""
        return self.require(key, kind) if key in self.metadata else default

    def token_id(self, name: str) -> int | None:
        """The id that the vocabulary gives a special token (`bos`, `eos`, `eot`, ...), if any."""
        key = f"tokenizer.ggml.{name}_token_id"
        token_id = self.get(key, int, None)
        if token_id is not None and token_id >= len(self.require("tokenizer.ggml.tokens", list)):
            raise CheckpointError(f"{self.path}: {key} is {token_id}, past the vocabulary's end")
        return token_id


def read_header(path: Path) -> GGUFHeader:
    """Reads everything before the tensors' data.

    Raises:
        ModelNotFoundError: there is no such file.
        CheckpointError: it isn't a GGUF file, or its header is damaged or cut off.
    """
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
    tensors = {n: GGUFTensor(n, shape, kind, start + offset) for n, shape, kind, offset in entries}
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
        """As string() count times; a vocabulary has 100,000 of them, so the loop is bare."""
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
