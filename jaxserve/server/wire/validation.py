"""From a request's bytes to a checked struct: a field that is ignored is named in the log."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar, get_type_hints

import msgspec
from aiohttp import web

from jaxserve.errors import InvalidRequestError
from jaxserve.server.wire.errors import ApiError
from jaxserve.server.wire.ignored_fields import (
    WITHOUT_EFFECT,
    ignore,
    refuses_unknown,
    without_unknown,
)
from jaxserve.text.surrogates import find_half_surrogate

BODY_TIMEOUT_S = 60
# Fields of whole requests whose objects may have unknown fields even if others are refused.
LENIENT = frozenset({"tools", "text", "reasoning"})

Body = TypeVar("Body", bound=msgspec.Struct)

_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(?P<name>.*?)`")
_MISSING_FIELD = re.compile(r"Object missing required field `(?P<name>.*?)`")
_IN_MAP = re.compile(r" - at `\$\.(?P<name>\w+)(?P<unknown>\[\.\.\.\])")
_AT_PATH = re.compile(r" - at `\$\.?(?P<path>.*)`$")


async def read_json(request: web.Request) -> dict[str, Any]:
    """Reads the body as a JSON object.

    Raises:
        ApiError: 415 for another content type, 413 (through aiohttp) for too many bytes, 408 if
            they don't arrive in time, 400 for anything that isn't one JSON object in UTF-8.
    """
    if request.content_type != "application/json":
        raise ApiError(
            415,
            f"Content-Type must be application/json; it was {request.content_type}",
            code="unsupported_media_type",
        )
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            data = await request.read()
    except TimeoutError:
        raise ApiError(
            408,
            f"the body didn't arrive within {BODY_TIMEOUT_S} seconds",
            code="timeout",
            headers={"Connection": "close"},
        ) from None
    try:
        body = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        at = find_half_surrogate(data)
        reason = error if at is None else f"half of a surrogate pair at byte {at}"
        raise ApiError(400, f"the body isn't valid JSON: {reason}", code="invalid_json") from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply", code="invalid_json") from None
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    return body


def parse(
    body: Mapping[str, Any],
    into: type[Body],
    unsupported: Mapping[str, tuple[Any, ...]],
    path: str = "",
) -> Body:
    """Checks `body` against the struct `into`.

    Unknown fields are ignored, and so are the fields that WITHOUT_EFFECT names. Where the server is
    strict, those of a whole request are refused, but for the objects that LENIENT names.

    Args:
        unsupported: fields of the API that aren't implemented, each with the values that are
            accepted because they change nothing; null always is.
        path: where the request has `body`, such as "messages[0].", for error messages.

    Raises:
        InvalidRequestError: names the field that is unknown, unsupported, missing or of a wrong
            type.
    """
    _refuse_unsupported(body, unsupported, path)
    kept = {}
    for name, value in body.items():
        if name in WITHOUT_EFFECT and name not in into.__struct_fields__:
            if value is not None:
                ignore(path + name)
        elif name not in unsupported:
            kept[name] = value
    if path or not refuses_unknown():
        kept = without_unknown(kept, into, path)
    else:
        kept |= without_unknown({name: kept[name] for name in LENIENT & kept.keys()}, into, path)
    try:
        return msgspec.convert(kept, into)
    except msgspec.ValidationError as error:
        raise _as_invalid_request(_with_key(str(error), kept, into), path) from None


def _with_key(message: str, body: Mapping[str, Any], into: type[Body]) -> str:
    """msgspec's message with the key of the wrong value in a map, in place of "[...]"."""
    if (at := _IN_MAP.search(message)) is None:
        return message
    kind = get_type_hints(into)[at["name"]]
    for key, value in body[at["name"]].items():
        try:
            msgspec.convert({key: value}, kind)
        except msgspec.ValidationError:
            return f"{message[: at.end('name')]}.{key}{message[at.end('unknown') :]}"
    return message


@contextmanager
def renaming(names: Mapping[str, str]) -> Iterator[None]:
    """Gives InvalidRequestErrors the request's own names of fields.

    Args:
        names: the engine's name of a field, or the beginning of its path, to the request's.
    """
    try:
        yield
    except InvalidRequestError as error:
        if (renamed := _renamed(error, names)) is None:
            raise
        raise renamed from None


def _renamed(error: InvalidRequestError, names: Mapping[str, str]) -> InvalidRequestError | None:
    """The error with the request's own name; None if that is the engine's."""
    path = error.param or ""
    begins = [name for name in names if re.match(rf"{re.escape(name)}(?![^.\[])", path)]
    if not begins:
        return None
    known = max(begins, key=len)
    message = str(error)
    if known != "prompt":  # messages say "the prompt" of the text, not of the field
        message = re.sub(rf"\b{re.escape(known)}\b", lambda _: names[known], message, count=1)
    return InvalidRequestError(message, names[known] + path[len(known) :], error.code)


def _refuse_unsupported(
    body: Mapping[str, Any], unsupported: Mapping[str, tuple[Any, ...]], path: str
) -> None:
    for name in body.keys() & unsupported.keys():
        value, accepted = body[name], unsupported[name]
        if value is None or any(map(partial(_equal, value), accepted)):
            continue
        alternative = f" or send {msgspec.json.encode(accepted[0]).decode()}" if accepted else ""
        raise InvalidRequestError(
            f"{path}{name} isn't supported by this server; leave it out{alternative}", path + name
        )


def _equal(value: Any, accepted: Any) -> bool:
    """Equality in which true isn't 1."""
    return value == accepted and isinstance(value, bool) == isinstance(accepted, bool)


def _as_invalid_request(message: str, path: str) -> InvalidRequestError:
    """msgspec's message in OpenAI's terms, with the field's path as `param`."""
    at = _AT_PATH.search(message)
    field = at["path"] if at else ""
    message = message[: at.start()] if at else message
    for pattern, text in (
        (_UNKNOWN_FIELD, "Unrecognized request argument supplied: {}"),
        (_MISSING_FIELD, "you must provide {}"),
    ):
        if found := pattern.search(message):
            param = path + (f"{field}." if field else "") + found["name"]
            return InvalidRequestError(text.format(param), param)
    param = (path + field).rstrip(".")
    return InvalidRequestError(f"{param}: {message}" if param else message, param or None)
