"""GET /openapi.json and /docs: the API's description, made from its request and response types."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web

import jaxserve
from jaxserve.server.api.shared.operation import Operation

_REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)(?::[^{}]*)?\}")
_FIELD_DOC = re.compile(r"^(\w+(?:, \w+)*): (.*(?:\n +.*)*)", re.MULTILINE)
_PAGE = Path(__file__).with_name("docs.html")

# Errors that any operation may answer with.
_ERROR_RESPONSES = {
    "400": "The request is invalid; `param` names the field.",
    "401": "A valid API key is needed.",
    "404": "The model does not exist.",
    "413": "The body is too large.",
    "415": "The body's Content-Type isn't application/json.",
    "422": "The request's fields together allow no token.",
    "429": "The queue is full: try again after Retry-After seconds.",
    "500": "The request failed; the server's log has the details under the message's id.",
    "503": "The server is shutting down, or its engine has died.",
}
_ONLY_WITH_BODY = ("400", "404", "413", "415", "422", "429")


class ErrorDetails(msgspec.Struct):
    """An error."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct):
    """OpenAI's form of an error response."""

    error: ErrorDetails


def describe(
    operations: Sequence[Operation], with_keys: bool, root_path: str = ""
) -> dict[str, Any]:
    """The OpenAPI 3.1 document.

    Args:
        root_path: the path under which a proxy serves the operations.
        with_keys: whether the server needs API keys.
    """
    kinds: list[Any] = [ErrorBody]
    for operation in operations:
        kinds += [k for k in (operation.response, operation.body, operation.event) if k is not None]
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
            _add_unsupported(schema, operation.unsupported or {})
        path = _PARAMETER.sub(r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _describe(operation, known)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "jaxserve", "version": jaxserve.__version__},
        "paths": paths,
        "components": {"schemas": components},
    }
    if root_path:
        document["servers"] = [{"url": root_path}]
    if with_keys:
        document["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"key": []}]
    return document


def _describe(operation: Operation, schemas: Mapping[int, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if operation.response is not None:
        content["application/json"] = {"schema": schemas[id(operation.response)]}
    if operation.event is not None:
        content["text/event-stream"] = {"schema": schemas[id(operation.event)]}
    error = {"application/json": {"schema": schemas[id(ErrorBody)]}}
    responses: dict[str, Any] = {"200": {"description": operation.summary, "content": content}}
    for status, meaning in _ERROR_RESPONSES.items():
        if operation.body is not None or status not in _ONLY_WITH_BODY:
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
        responses["404"] = {"description": _ERROR_RESPONSES["404"], "content": error}
    if operation.body is not None:
        body = {"application/json": {"schema": schemas[id(operation.body)]}}
        described["requestBody"] = {"required": True, "content": body}
    return described


def _move_field_docs(schema: dict[str, Any], doc: str, of_base: bool = False) -> None:
    """Moves what a docstring's Args say of fields to the fields; the rest describes the schema."""
    about, _, fields = doc.partition("Args:")
    if about.strip() and not of_base:
        schema["description"] = about.strip()
    for names, text in _FIELD_DOC.findall(inspect.cleandoc(fields)):
        for name in names.split(", "):
            if name in schema.get("properties", {}):
                schema["properties"][name].setdefault("description", " ".join(text.split()))


def _add_unsupported(schema: dict[str, Any], unsupported: Mapping[str, Sequence[Any]]) -> None:
    for name, accepted in unsupported.items():
        schema["properties"][name] = {
            "enum": [*accepted, None],
            "description": "Not supported: only values that change nothing are accepted.",
        }


def routes(operations: Sequence[Operation], with_keys: bool, root_path: str) -> list[web.RouteDef]:
    """Routes of the document, and of the page that shows it."""
    document = msgspec.json.encode(describe(operations, with_keys, root_path))
    page = _PAGE.read_bytes()

    async def openapi(_: web.Request) -> web.Response:
        return web.Response(body=document, content_type="application/json")

    async def docs(_: web.Request) -> web.Response:
        return web.Response(body=page, content_type="text/html", charset="utf-8")

    return [web.get("/openapi.json", openapi), web.get("/docs", docs)]
