"""Checks of the fields in a model's JSON files: each has a type and a range."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jaxserve.errors import CheckpointError

LARGEST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Kind:
    """What a field may hold.

    Args:
        words: describes it in messages.
    """

    words: str
    accepts: Callable[[Any], bool]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def whole(low: int = 0, high: int = LARGEST) -> Kind:
    """A whole number in [low, high]; 2.0 isn't one."""
    return Kind(
        f"a whole number from {low} to {high}",
        lambda v: isinstance(v, int) and not isinstance(v, bool) and low <= v <= high,
    )


def number(low: float, high: float = math.inf, *, above: bool = False) -> Kind:
    """A number in [low, high], or with `above` in (low, high]."""
    start = f"greater than {low:g}" if above else f"of at least {low:g}"
    return Kind(
        f"a number {start}" + ("" if high == math.inf else f" and at most {high:g}"),
        lambda v: _is_number(v) and (low < v if above else low <= v) and v <= high,
    )


def list_of(kind: Kind) -> Kind:
    return Kind(
        f"a list, each entry {kind.words}",
        lambda v: isinstance(v, list) and all(map(kind.accepts, v)),
    )


def either(first: Kind, second: Kind) -> Kind:
    return Kind(
        f"{first.words}, or {second.words}", lambda v: first.accepts(v) or second.accepts(v)
    )


FLAG = Kind("true or false", lambda v: isinstance(v, bool))
TEXT = Kind("a string", lambda v: isinstance(v, str))
OBJECT = Kind("an object", lambda v: isinstance(v, dict))
TOKEN_IDS = either(whole(), list_of(whole()))


def check(values: Mapping[str, Any], fields: Mapping[str, Kind]) -> None:
    """Checks the fields that are present and not null.

    Raises:
        CheckpointError: names the field.
    """
    for name, kind in fields.items():
        value = values.get(name)
        if value is not None and not kind.accepts(value):
            raise CheckpointError(f"{name} must be {kind.words}; it was {str(value)[:80]!r}")


def token_ids(value: int | list[int] | None) -> tuple[int, ...]:
    """The ids in a field of kind TOKEN_IDS."""
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)
