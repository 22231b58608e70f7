"""Unknown fields are ignored and named; a strict server refuses them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.jaxserve.server.conftest import ServerProcess

LIMIT = aiohttp.ClientTimeout(total=120)  # only against hanging
CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
# Each with what is named, and what a strict server refuses.
UNKNOWN: list[tuple[str, dict[str, Any], str, str]] = [
    ("/v1/chat/completions", CHAT | {"frobnicate": 1}, "frobnicate", "frobnicate"),
    (
        "/v1/chat/completions",
        CHAT | {"chat_template_kwargs": {"unheard_of": 1, "deep": True}},
        "chat_template_kwargs.unheard_of",
        "chat_template_kwargs",
    ),
    (
        "/v1/chat/completions",
        CHAT | {"chat_template_kwargs": {"": 1}},
        "chat_template_kwargs.",
        "chat_template_kwargs",
    ),
    (
        "/v1/chat/completions",
        CHAT | {"response_format": {"type": "text", "colour": 1}},
        "response_format.colour",
        "response_format.colour",
    ),
    ("/v1/completions", {"prompt": "x", "max_tokens": 1, "colour": 1}, "colour", "colour"),
    ("/v1/responses", {"input": "x", "max_output_tokens": 1, "colour": 1}, "colour", "colour"),
    ("/v1/embeddings", {"input": "x", "colour": 1}, "colour", "colour"),
    ("/tokenize", {"prompt": "x", "colour": 1}, "colour", "colour"),
]


async def post(server: Any, path: str, body: Any) -> tuple[int, Any, Any]:
    async with (
        aiohttp.ClientSession(server.url, timeout=LIMIT) as http,
        http.post(path, json=body) as response,
    ):
        if response.content_type == "application/json":
            return response.status, await response.json(), response.headers
        return response.status, await response.text(), response.headers


@pytest.fixture(scope="module")
def strict_server(tiny_flags: tuple[str, ...]) -> Iterator[ServerProcess]:
    server = ServerProcess.launch(*tiny_flags, "--strict-fields")
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()


@pytest.mark.parametrize(("path", "body", "named", "param"), UNKNOWN)
async def test_what_is_unknown_is_named(
    tiny_server: Any, path: str, body: Any, named: str, param: str
) -> None:
    status, answer, headers = await post(tiny_server, path, body)
    assert status == 200, answer
    assert headers["X-Ignored-Fields"] == named


@pytest.mark.slow
@pytest.mark.parametrize(("path", "body", "named", "param"), UNKNOWN)
async def test_a_strict_server_refuses_it(
    strict_server: Any, path: str, body: Any, named: str, param: str
) -> None:
    status, answer, _ = await post(strict_server, path, body)
    assert status == 400
    assert answer["error"]["param"] == param


async def test_names_are_made_fit_for_a_header(tiny_server: Any) -> None:
    body = CHAT | {"a\r\nX-Evil: 1": 1, "b, c": 2, "é": 3, "stream": True}
    status, text, headers = await post(tiny_server, "/v1/chat/completions", body)
    assert status == 200
    assert "data: [DONE]" in text
    assert "X-Evil" not in headers
    assert headers["X-Ignored-Fields"] == "a??X-Evil: 1, b? c, ?"


async def test_what_would_change_the_answer_stays_refused(tiny_server: Any) -> None:
    for field, value in (("audio", {"voice": "x"}), ("chat_template", "{{ x }}")):
        status, answer, _ = await post(tiny_server, "/v1/chat/completions", CHAT | {field: value})
        assert (status, answer["error"]["param"]) == (400, field)
    _, _, headers = await post(tiny_server, "/v1/chat/completions", CHAT)
    assert "X-Ignored-Fields" not in headers
