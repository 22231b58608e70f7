"""Errors that need no engine, over real HTTP: each in OpenAI's form."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import ClientResponse
from aiohttp.test_utils import TestClient, TestServer

from jaxserve.config import ServerConfig
from jaxserve.engine.frontend.client import EngineClient
from jaxserve.server.app import create_app
from jaxserve.server.context import SERVER_CONTEXT
from jaxserve.server.wire import validation

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
NO_ENGINE = SimpleNamespace(sampling_defaults={}, adapters={})


@pytest.fixture
async def http() -> AsyncIterator[TestClient[Any, Any]]:
    no_engine = cast(EngineClient, NO_ENGINE)  # requests are refused before they reach it
    config = ServerConfig(served_model_names=("m", "org/m"), max_body_bytes=1000)
    async with TestClient(TestServer(create_app(no_engine, config))) as client:
        yield client


async def error_of(response: ClientResponse) -> dict[str, Any]:
    assert response.content_type == "application/json"
    body = await response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    return body["error"]


@pytest.mark.parametrize("path", ["/v", "/v1", "/v1/moderations", "/v1/chat/completions/x"])
async def test_unknown_path(http: TestClient[Any, Any], path: str) -> None:
    response = await http.post(path, json={})
    assert response.status == 404
    assert (await error_of(response))["code"] == "unknown_url"


async def test_wrong_method(http: TestClient[Any, Any]) -> None:
    response = await http.get(CHAT)
    assert response.status == 405
    assert response.headers["Allow"] == "POST"
    assert "POST" in (await error_of(response))["message"]


async def test_too_large_a_body(http: TestClient[Any, Any]) -> None:
    response = await http.post(TEXT, json={"model": "m", "prompt": "x" * 2000})
    assert response.status == 413
    await error_of(response)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"model": "m"} x',
        b'{"model": NaN}',
        b'{"model": "\xff"}',
        b'{"model": "\\ud800"}',
        b"[1]",
        b"null",
        b"[" * 900,
    ],
)
async def test_malformed_json(http: TestClient[Any, Any], data: bytes) -> None:
    response = await http.post(CHAT, data=data, headers={"Content-Type": "application/json"})
    assert response.status == 400
    assert (await error_of(response))["code"] == "invalid_json"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded"])
async def test_wrong_content_type(http: TestClient[Any, Any], kind: str) -> None:
    response = await http.post(CHAT, data=b"{}", headers={"Content-Type": kind})
    assert response.status == 415
    assert kind in (await error_of(response))["message"]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"model": "gpt-9", "messages": [{"role": "user", "content": "x"}]}),
        (TEXT, {"model": "gpt-9", "prompt": "x"}),
    ],
)
async def test_unknown_model(http: TestClient[Any, Any], path: str, body: Any) -> None:
    response = await http.post(path, json=body)
    assert response.status == 404
    error = await error_of(response)
    assert (error["code"], error["param"]) == ("model_not_found", "model")


@pytest.mark.parametrize("sent", ["", "{", '{"model": "m", "prompt": "x'])
async def test_a_body_that_does_not_arrive_in_time(
    http: TestClient[Any, Any], monkeypatch: pytest.MonkeyPatch, sent: str
) -> None:
    monkeypatch.setattr(validation, "BODY_TIMEOUT_S", 0.2)

    async def never_ends() -> AsyncIterator[bytes]:
        yield sent.encode()
        await asyncio.sleep(3600)

    response = await http.post(
        TEXT, data=never_ends(), headers={"Content-Type": "application/json"}
    )
    assert response.status == 408
    assert response.headers["Connection"] == "close"
    error = await error_of(response)
    assert (error["type"], error["code"]) == ("invalid_request_error", "timeout")
    response.close()


async def test_unknown_model_by_path(http: TestClient[Any, Any]) -> None:
    response = await http.get("/v1/models/org/other")
    assert response.status == 404
    assert (await error_of(response))["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"model": "m", "messages": []}, "messages"),
        (CHAT, {"model": "m"}, "messages"),
        (TEXT, {"model": "m", "prompt": "x", "max_tokens": 0}, "max_tokens"),
        (TEXT, {"model": "m", "prompt": "x", "temperature": 3}, "temperature"),
        (CHAT, {"model": "m", "messages": [], "echo": True}, "echo"),
        (TEXT, {"model": "m", "prompt": "x", "suffix": "y"}, "suffix"),
        (TEXT, {"model": "m", "prompt": ["x"] * 129}, "prompt"),
    ],
)
async def test_bad_fields(http: TestClient[Any, Any], path: str, body: Any, param: str) -> None:
    response = await http.post(path, json=body)
    assert response.status == 400
    error = await error_of(response)
    assert (error["type"], error["param"]) == ("invalid_request_error", param)


async def test_a_server_sets_its_own_limits() -> None:
    no_engine = cast(EngineClient, NO_ENGINE)
    limits = {"max_choices": 2, "max_logprobs": 3, "max_stop_strings": 1, "max_output_tokens": 50}
    app = create_app(no_engine, ServerConfig(served_model_names=("m",), **limits))
    async with TestClient(TestServer(app)) as http:
        for field, value in (
            ("n", 3),
            ("logprobs", 4),
            ("stop", ["a", "b"]),
            ("max_tokens", 51),
        ):
            response = await http.post(TEXT, json={"model": "m", "prompt": "x", field: value})
            assert response.status == 400
            assert (await error_of(response))["param"] == field
        chat = {"model": "m", "messages": [], "logprobs": True, "top_logprobs": 4}
        response = await http.post(CHAT, json=chat)
        assert (await error_of(response))["param"] == "top_logprobs"


async def test_an_unexpected_error_shows_only_an_id(
    http: TestClient[Any, Any], caplog: pytest.LogCaptureFixture
) -> None:
    # Without an engine a valid request raises an exception that no handler expects.
    response = await http.post(TEXT, json={"model": "m", "prompt": "x"})
    assert response.status == 500
    error = await error_of(response)
    assert "SimpleNamespace" not in error["message"]
    (record,) = [r for r in caplog.records if r.name == "jaxserve.server.wire.errors"]
    error_id = error["message"].rpartition(" ")[2]
    assert error_id.startswith("err-")
    assert record.getMessage().startswith(error_id)
    assert record.exc_info is not None


@pytest.mark.parametrize(
    ("silent_s", "busy_s", "status"),
    [(0, 0, 200), (59, 599, 200), (61, 0, 503), (0.5, 601, 503)],
)
async def test_a_long_step_is_not_a_stuck_engine(
    silent_s: float, busy_s: float, status: int
) -> None:
    stats = SimpleNamespace(busy_s=busy_s)
    engine = SimpleNamespace(healthy=True, silent_s=silent_s, stats=stats)
    app = create_app(cast(EngineClient, engine), ServerConfig(served_model_names=("m",)))
    async with TestClient(TestServer(app)) as http:
        response = await http.get("/health")
        assert response.status == status
        if status == 503:
            assert (await error_of(response))["code"] == "engine_stuck"


async def test_closed_admission_over_http(http: TestClient[Any, Any]) -> None:
    assert (await http.get("/load")).status == 200
    assert http.server is not None
    http.server.app[SERVER_CONTEXT].admission.close()
    assert (await http.get("/version")).status == 200
    response = await http.get("/load")
    assert response.status == 503
    assert response.headers["Connection"] == "close"
    assert "Retry-After" in response.headers
    assert (await error_of(response))["code"] == "shutting_down"
