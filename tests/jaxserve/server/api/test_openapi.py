"""The OpenAPI document has every route and every field."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from aiohttp.test_utils import TestClient, TestServer

from jaxserve.config import ServerConfig
from jaxserve.engine.frontend.client import EngineClient
from jaxserve.server.api_keys import ApiKeys
from jaxserve.server.app import create_app
from jaxserve.server.wire.chat.request import CHAT_UNSUPPORTED, ChatCompletionRequest
from jaxserve.server.wire.completions.request import COMPLETION_UNSUPPORTED, CompletionRequest


@pytest.fixture
async def http() -> AsyncIterator[TestClient[Any, Any]]:
    config = ServerConfig(served_model_names=("m",), enable_dev_endpoints=True)
    app = create_app(cast(EngineClient, None), config, ApiKeys(["secret"]))
    async with TestClient(TestServer(app)) as client:
        yield client


@pytest.fixture
async def document(http: TestClient[Any, Any]) -> Any:
    response = await http.get("/openapi.json")  # without a key
    assert response.status == 200
    return await response.json()


async def test_every_route_is_described(http: TestClient[Any, Any], document: Any) -> None:
    assert http.server is not None
    routes = {
        (route.method, route.resource.canonical)
        for route in http.server.app.router.routes()
        if route.method != "HEAD"
    }
    described = {
        (method.upper(), path) for path, methods in document["paths"].items() for method in methods
    }
    assert {("POST", "/v1/chat/completions"), ("GET", "/server_info")} <= described
    pages = {("GET", path) for path in ("/openapi.json", "/docs", "/", "/page/{name}")}
    assert routes - described == pages
    assert described <= routes


@pytest.mark.parametrize(
    ("kind", "refused"),
    [(ChatCompletionRequest, CHAT_UNSUPPORTED), (CompletionRequest, COMPLETION_UNSUPPORTED)],
)
def test_every_field_is_described(document: Any, kind: Any, refused: Any) -> None:
    schema = document["components"]["schemas"][kind.__name__]
    assert set(schema["properties"]) == {*kind.__struct_fields__, *refused}
    assert schema["additionalProperties"] is False
    assert schema["properties"]["priority"]["description"].startswith("lower runs first")
    assert schema["properties"]["suffix" if "suffix" in refused else "audio"]["enum"][-1] is None


def test_every_reference_resolves(document: Any) -> None:
    names = set(re.findall(r"#/components/schemas/([^'\"]+)", str(document)))
    assert names <= set(document["components"]["schemas"])
    ids = [o["operationId"] for methods in document["paths"].values() for o in methods.values()]
    assert len(ids) == len(set(ids))
    assert document["security"] == [{"key": []}]


async def test_the_page_needs_nothing_from_elsewhere(http: TestClient[Any, Any]) -> None:
    response = await http.get("/docs")
    assert response.status == 200
    assert response.content_type == "text/html"
    page = await response.text()
    assert 'fetch("openapi.json")' in page
    assert "http:" not in page
    assert "https:" not in page


async def test_admin_endpoints_are_behind_a_flag() -> None:
    app = create_app(cast(EngineClient, None), ServerConfig(served_model_names=("m",)))
    async with TestClient(TestServer(app)) as http:
        for path in ("/reset_prefix_cache", "/start_profile", "/stop_profile"):
            assert (await http.post(path)).status == 404
        assert (await http.get("/server_info")).status == 404
