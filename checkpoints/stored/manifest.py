"""A stored parameter as named arrays and an entry of JSON, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from jaxserve.errors import CheckpointError
from jaxserve.models.weights import Joined, Plain, Scheme, Stored, Weight
from jaxserve.models.weights.gguf_blocks import GGUFBlocks
from jaxserve.models.weights.inputs import InputRounding
from jaxserve.models.weights.scaled import Scaled

_SCHEMES: Mapping[str, Callable[..., Scheme]] = {
    "GGUFBlocks": GGUFBlocks,
    "Plain": Plain,
    "Scaled": Scaled,
}


def arrays_of(name: str, stored: Stored) -> dict[str, Any]:
    """The arrays of a parameter, under names that begin with its own."""
    parts = stored.parts if isinstance(stored, Joined) else (stored,)
    return {
        f"{name}.{i}.{array}": value
        for i, part in enumerate(parts)
        for array, value in part.arrays.items()
    }


def entry_of(stored: Stored) -> dict[str, Any]:
    """What JSON has to say of a stored parameter beside its arrays."""
    parts = stored.parts if isinstance(stored, Joined) else (stored,)
    return {
        "axis": stored.axis if isinstance(stored, Joined) else None,
        "parts": [_part_entry(part) for part in parts],
    }


def _part_entry(part: Weight) -> dict[str, Any]:
    scheme: Any = part.scheme
    return {
        "scheme": type(scheme).__name__,
        "fields": asdict(scheme),
        "rounding": None if part.rounding is None else asdict(part.rounding),
        "arrays": sorted(part.arrays),
    }


def rebuild(name: str, entry: Mapping[str, Any], array: Callable[[str], Any]) -> Stored:
    """The parameter of an entry.

    Args:
        array: gives an array by the name that arrays_of() gave it.

    Raises:
        CheckpointError: the entry is damaged, or of a scheme that isn't known.
    """
    try:
        parts = tuple(
            Weight(
                {one: array(f"{name}.{i}.{one}") for one in part["arrays"]},
                _SCHEMES[part["scheme"]](**part["fields"]),
                None if part["rounding"] is None else InputRounding(**part["rounding"]),
            )
            for i, part in enumerate(entry["parts"])
        )
        return parts[0] if entry["axis"] is None else Joined(parts, entry["axis"])
    except (KeyError, TypeError, IndexError) as error:
        raise CheckpointError(f"the entry of {name} isn't one of ours ({error!r})") from None
