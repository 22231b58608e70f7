"""From a request's bytes to a checked struct: nothing that a client sent is silently ignored."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from jaxserve.errors import InvalidRequestError
from jaxserve.server.context import SERVING
from jaxserve.server.observability.request_log import RECORD
from jaxserve.server.wire.errors import ApiError

BODY_SECONDS = 60

Body = TypeVar("Body", bound=msgspec.Struct)

_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(?P<name>.*?)`")
_MISSING_FIELD = re.compile(r"Object missing required field `(?P<name>.*?)`")
_AT_PATH = re.compile(r" - at `\$\.?(?P<path>.*)`$")


async def read_json(request: web.Request) -> dict[str, Any]:
    """Reads the body as a JSON object.

    Raises:
        ApiError: 415 for another content type, 413 (through aiohttp) for too many bytes, 408 if
            they don't come, 400 for anything that isn't one JSON object in UTF-8.
    """
    if request.content_type != "application/json":
        raise ApiError(
            415,
            f"Content-Type must be application/json; it was {request.content_type}",
            code="unsupported_media_type",
        )
    try:
        async with asyncio.timeout(BODY_SECONDS):
            data = await request.read()
    except TimeoutError:
        raise ApiError(
            408,
            f"the body didn't come within {BODY_SECONDS} seconds",
            code="timeout",
            headers={"Connection": "close"},
        ) from None
    try:
        body = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise ApiError(400, f"the body isn't valid JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply", code="invalid_json") from None
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    if request.app[SERVING].config.log_prompts:
        request[RECORD].body = body
    return body


def parse(
    body: Mapping[str, Any],
    into: type[Body],
    unsupported: Mapping[str, tuple[Any, ...]],
    where: str = "",
) -> Body:
    """Checks `body` against the struct `into`.

    Args:
        unsupported: fields of the API that aren't implemented, each with the values that ask for
            nothing and are therefore accepted; null always is.
        where: path of `body` in the request, as "messages[0].", for error messages.

    Raises:
        InvalidRequestError: names the field that is unknown, unsupported, missing or of a wrong
            type.
    """
    _refuse(body, unsupported, where)
    known = {name: value for name, value in body.items() if name not in unsupported}
    try:
        return msgspec.convert(known, into)
    except msgspec.ValidationError as error:
        raise _explain(str(error), where) from None


@contextmanager
def renaming(names: Mapping[str, str]) -> Iterator[None]:
    """Renames fields in InvalidRequestErrors as the request spells them.

    Args:
        names: what the engine calls it, and what the request does.
    """
    try:
        yield
    except InvalidRequestError as error:
        if error.param is None or (name := names.get(error.param)) is None:
            raise
        message = str(error)
        if error.param != "prompt":  # "the prompt" isn't meant as a field
            message = re.sub(rf"\b{error.param}\b", name, message, count=1)
        raise InvalidRequestError(message, name, error.code) from None


def _refuse(
    body: Mapping[str, Any], unsupported: Mapping[str, tuple[Any, ...]], where: str
) -> None:
    for name in body.keys() & unsupported.keys():
        value, accepted = body[name], unsupported[name]
        if value is None or any(_same(value, harmless) for harmless in accepted):
            continue
        choice = f" or send {msgspec.json.encode(accepted[0]).decode()}" if accepted else ""
        raise InvalidRequestError(
            f"{where}{name} isn't supported by this server; leave it out{choice}", where + name
        )


def _same(value: Any, harmless: Any) -> bool:
    """Equality in which true isn't 1."""
    return value == harmless and isinstance(value, bool) == isinstance(harmless, bool)


def _explain(complaint: str, where: str) -> InvalidRequestError:
    """msgspec's complaint in OpenAI's terms, with the field's path as `param`."""
    at = _AT_PATH.search(complaint)
    path = at["path"] if at else ""
    complaint = complaint[: at.start()] if at else complaint
    for pattern, say in (
        (_UNKNOWN_FIELD, "Unrecognized request argument supplied: {}"),
        (_MISSING_FIELD, "you must provide {}"),
    ):
        if found := pattern.search(complaint):
            param = where + (f"{path}." if path else "") + found["name"]
            return InvalidRequestError(say.format(param), param)
    param = (where + path).rstrip(".")
    return InvalidRequestError(f"{param}: {complaint}" if param else complaint, param or None)
