"""Operation: one route and its description."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from jaxserve.server.middleware.errors import Handler


@dataclass(frozen=True, slots=True)
class Operation:
    """One route, and its description for the OpenAPI document.

    Args:
        response: the type of a 200 response; None if it isn't JSON.
        body: the type of the request's body; None if there is none.
        event: the type of each server-sent event, if the request can ask for a stream.
        unsupported: fields of the body that aren't supported, with the values that are accepted.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    response: Any = None
    body: Any = None
    event: Any = None
    unsupported: Mapping[str, Sequence[Any]] | None = None

    def route(self) -> web.RouteDef:
        return web.route(self.method, self.path, self.handler)
