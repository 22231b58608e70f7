"""Fields of a request that change nothing: they are dropped, and named in its log line and in the
response's header X-Ignored-Fields."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

# Accepted with any value in every request: they label it, or ask for what doesn't exist here and
# changes no answer.
WITHOUT_EFFECT = frozenset(
    {
        *("service_tier", "store", "verbosity", "truncation", "client_metadata"),
        *("prompt_cache_retention", "prompt_cache_options"),
        "max_tool_calls",  # of the tools that OpenAI's servers run
    }
)
MAX_NAMED = 32  # fields of one request

_named: ContextVar[list[str] | None] = ContextVar("jaxserve_ignored_fields", default=None)
_strict: ContextVar[bool] = ContextVar("jaxserve_strict_fields", default=False)


@contextmanager
def collect_ignored(into: list[str], strict: bool = False) -> Iterator[None]:
    """Adds the names of fields that are ignored while the context is open to a list.

    Args:
        strict: unknown fields of whole requests, and arguments that a chat template doesn't use,
            are refused instead.
    """
    named, refused = _named.set(into), _strict.set(strict)
    try:
        yield
    finally:
        _named.reset(named)
        _strict.reset(refused)


def refuses_unknown() -> bool:
    """Whether unknown fields of the current request are refused."""
    return _strict.get()


def ignore(name: str) -> None:
    """Notes that a field is ignored. Args: name: its path in the request."""
    named = _named.get()
    if named is not None and len(named) < MAX_NAMED and name not in named:
        named.append(name[:200])


def without_unknown(value: Mapping[str, Any], into: type[msgspec.Struct], path: str) -> Any:
    """A JSON object without the fields that a struct, or one inside it, doesn't have.

    Clients send back what they got, and add fields of their own. null says nothing, so a field
    that is null isn't named.

    Args:
        path: where the request has the object, such as "messages[0].".
    """
    return _prune(value, _type_of(into), path.removesuffix("."))


@cache
def _type_of(into: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(into)


def _prune(value: Any, kind: inspect.Type, path: str) -> Any:
    if isinstance(kind, inspect.UnionType):
        nested = [t for t in kind.types if isinstance(t, inspect.StructType | inspect.ListType)]
        return _prune(value, nested[0], path) if len(nested) == 1 else value
    if isinstance(kind, inspect.ListType) and isinstance(value, list):
        return [_prune(item, kind.item_type, f"{path}[{i}]") for i, item in enumerate(value)]
    if not (isinstance(kind, inspect.StructType) and isinstance(value, dict)):
        return value
    known = {field.encode_name: field.type for field in kind.fields}
    if kind.tag_field is not None:
        known[kind.tag_field] = inspect.AnyType()
    start = f"{path}." if path else ""
    pruned = {}
    for name, item in value.items():
        if name in known:
            pruned[name] = _prune(item, known[name], start + name)
        elif item is not None:
            ignore(start + name)
    return pruned
