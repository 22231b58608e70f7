"""GET /openapi.json and /docs: the API described from the very types that it reads and writes."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

import jaxserve
from jaxserve.server.wire.errors import Handler

_REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)(?::[^{}]*)?\}")
_FIELD_DOC = re.compile(r"^(\w+(?:, \w+)*): (.*(?:\n +.*)*)", re.MULTILINE)
_PAGE = Path(__file__).with_name("docs.html")

# What any operation may answer beside what it is for.
_FAILURES = {
    "400": "The request can't be served as written; `param` names the field.",
    "401": "A known API key is needed.",
    "404": "There is no such model.",
    "413": "The body is too large.",
    "415": "The body's Content-Type isn't application/json.",
    "422": "The request is well-formed, and leaves nothing to generate.",
    "429": "The queue is full: try again after Retry-After seconds.",
    "500": "The request failed; the message has an id that is in the server's log.",
    "503": "The server is shutting down, or its engine is gone.",
}
_OF_BODIES = ("400", "404", "413", "415", "422", "429")


class Failure(msgspec.Struct):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct):
    """OpenAI's envelope of every error."""

    error: Failure


@dataclass(frozen=True, slots=True)
class Operation:
    """One route, and what there is to say of it.

    Args:
        answer: of a 200; None is no JSON.
        body: what it reads; None is no body.
        event: of each server-sent event, where the body may ask for a stream.
        refused: fields of the body that aren't supported, with the values that are accepted.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    answer: Any = None
    body: Any = None
    event: Any = None
    refused: Mapping[str, Sequence[Any]] | None = None

    def route(self) -> web.RouteDef:
        return web.route(self.method, self.path, self.handler)


def describe(operations: Sequence[Operation], with_keys: bool) -> dict[str, Any]:
    """The OpenAPI 3.1 document.

    Args:
        with_keys: the server asks for API keys.
    """
    kinds: list[Any] = [ErrorBody]
    for operation in operations:
        kinds += [k for k in (operation.answer, operation.body, operation.event) if k is not None]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    known = dict(zip(map(id, kinds), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for schema in components.values():
        _move_field_docs(schema, schema.get("description", ""))
    for operation in operations:
        if operation.body is not None:
            schema = components[operation.body.__name__]
            for base in operation.body.__mro__[1:-1]:
                _move_field_docs(schema, inspect.getdoc(base) or "", of_base=True)
            _add_refused(schema, operation.refused or {})
        path = _PARAMETER.sub(r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _describe(operation, known)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "jaxserve", "version": jaxserve.__version__},
        "paths": paths,
        "components": {"schemas": components},
    }
    if with_keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _describe(operation: Operation, schemas: Mapping[int, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if operation.answer is not None:
        content["application/json"] = {"schema": schemas[id(operation.answer)]}
    if operation.event is not None:
        content["text/event-stream"] = {"schema": schemas[id(operation.event)]}
    error = {"application/json": {"schema": schemas[id(ErrorBody)]}}
    responses: dict[str, Any] = {"200": {"description": operation.summary, "content": content}}
    for status, meaning in _FAILURES.items():
        if operation.body is not None or status not in _OF_BODIES:
            responses[status] = {"description": meaning, "content": error}
    described: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{operation.method.lower()}{operation.path}"),
        "summary": operation.summary,
        "responses": responses,
    }
    if names := _PARAMETER.findall(operation.path):
        described["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
        responses["404"] = {"description": _FAILURES["404"], "content": error}
    if operation.body is not None:
        body = {"application/json": {"schema": schemas[id(operation.body)]}}
        described["requestBody"] = {"required": True, "content": body}
    return described


def _move_field_docs(schema: dict[str, Any], doc: str, of_base: bool = False) -> None:
    """Gives each field what the docstring's Args say of it, and the schema the rest."""
    about, _, fields = doc.partition("Args:")
    if about.strip() and not of_base:
        schema["description"] = about.strip()
    for names, text in _FIELD_DOC.findall(inspect.cleandoc(fields)):
        for name in names.split(", "):
            if name in schema.get("properties", {}):
                schema["properties"][name].setdefault("description", " ".join(text.split()))


def _add_refused(schema: dict[str, Any], refused: Mapping[str, Sequence[Any]]) -> None:
    for name, accepted in refused.items():
        schema["properties"][name] = {
            "enum": [*accepted, None],
            "description": "Not supported: only values that ask for nothing are accepted.",
        }


def routes(operations: Sequence[Operation], with_keys: bool) -> list[web.RouteDef]:
    """Of the document and of the page that shows it."""
    document = msgspec.json.encode(describe(operations, with_keys))
    page = _PAGE.read_bytes()

    async def openapi(_: web.Request) -> web.Response:
        return web.Response(body=document, content_type="application/json")

    async def docs(_: web.Request) -> web.Response:
        return web.Response(body=page, content_type="text/html", charset="utf-8")

    return [web.get("/openapi.json", openapi), web.get("/docs", docs)]
