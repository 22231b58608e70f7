"""JSON files of a checkpoint's folder. Standard library only: the server process reads them too."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jaxserve.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from jaxserve.models.fields import Kind, check


def read_json(
    file: Path, fields: Mapping[str, Kind] | None = None, *, optional: bool = False
) -> dict[str, Any]:
    """A JSON object.

    Args:
        fields: the kinds of some of its fields.
        optional: a missing file counts as an empty object.

    Raises:
        ModelNotFoundError: there is no such file.
        CheckpointError: it isn't a JSON object, or a field is of another kind.
    """
    try:
        text = file.read_bytes()
    except FileNotFoundError:
        if optional:
            return {}
        raise ModelNotFoundError(f"{file.parent}: there is no {file.name} in it") from None
    with naming(file):
        value = parse_json(text)
        check(value, fields or {})
    return value


def parse_json(text: bytes) -> dict[str, Any]:
    """A JSON object in UTF-8.

    Raises:
        CheckpointError: it isn't one.
    """
    try:
        value = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise CheckpointError("not a JSON object")
    return value


@contextmanager
def naming(file: Path) -> Iterator[None]:
    """Puts the file's name in front of the message of an error about its contents."""
    try:
        yield
    except (CheckpointError, UnsupportedModelError) as error:
        raise type(error)(f"{file}: {error}") from None
