"""Requests that ask for much work: it is done once, off the event loop, or refused."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from jaxserve.server.api.completions import LONG_PROMPT, MAX_PROMPT_LOGPROBS
from jaxserve.server.api.tokenization import MAX_CHARACTERS

LIMIT = aiohttp.ClientTimeout(total=120)  # only against hanging
PROMPT = "abcdefgh" * 90  # of the tiny model, a token a byte


async def post(server: Any, path: str, **body: Any) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession(server.url, timeout=LIMIT) as http,
        http.post(path, json={"model": "tiny", **body}) as response,
    ):
        return response.status, json.loads(await response.read())


@pytest.mark.parametrize("stream", [False, True])
async def test_every_choice_has_the_echoed_logprobs_of_a_long_prompt(
    tiny_server: Any, stream: bool
) -> None:
    assert len(PROMPT) > LONG_PROMPT
    asked = {"prompt": PROMPT, "echo": True, "logprobs": 2, "max_tokens": 1, "temperature": 0}
    _, one = await post(tiny_server, "/v1/completions", **asked)
    expected = one["choices"][0]
    assert expected["text"].startswith(PROMPT)
    logprobs = expected["logprobs"]
    assert "".join(logprobs["tokens"]) == expected["text"]
    assert logprobs["text_offset"][: len(PROMPT)] == list(range(len(PROMPT)))
    if not stream:
        _, three = await post(tiny_server, "/v1/completions", **asked, n=3)
        assert [c["logprobs"] for c in three["choices"]] == [logprobs] * 3
        return
    async with (
        aiohttp.ClientSession(tiny_server.url, timeout=LIMIT) as http,
        http.post(
            "/v1/completions", json={"model": "tiny", "stream": True, "n": 3, **asked}
        ) as response,
    ):
        lines = [line.strip() async for line in response.content if line.startswith(b"data: {")]
    chunks = [json.loads(line.removeprefix(b"data: "))["choices"][0] for line in lines]
    for index in range(3):
        own = [chunk for chunk in chunks if chunk["index"] == index]
        assert "".join(chunk["text"] for chunk in own) == expected["text"]
        tokens = [token for chunk in own for token in (chunk["logprobs"] or logprobs)["tokens"]]
        assert tokens == logprobs["tokens"]


@pytest.mark.parametrize("field", ["logprobs", "prompt_logprobs"])
async def test_more_logprobs_of_prompts_than_a_response_holds_are_refused(
    tiny_server: Any, field: str
) -> None:
    assert len(PROMPT) * 40 * 21 > MAX_PROMPT_LOGPROBS
    status, body = await post(
        tiny_server,
        "/v1/completions",
        **{"prompt": PROMPT, "echo": True, "n": 40, "max_tokens": 1, field: 20},
    )
    assert status == 400
    assert f"at most {MAX_PROMPT_LOGPROBS}" in body["error"]["message"]


async def test_tokenizing_is_bounded(tiny_server: Any) -> None:
    status, body = await post(tiny_server, "/tokenize", prompt="a" * (MAX_CHARACTERS + 1))
    assert (status, body["error"]["param"]) == (400, "prompt")
    long = [{"role": "user", "content": "a" * (MAX_CHARACTERS + 1)}]
    status, body = await post(tiny_server, "/tokenize", messages=long)
    assert (status, body["error"]["param"]) == (400, "messages")
    status, body = await post(tiny_server, "/tokenize", prompt="a" * 100_000)
    assert (status, body["count"]) == (200, 100_000)


@pytest.mark.parametrize("ids", [[97] * 300_000, [97] * 300_000 + [10**9]])
async def test_too_many_ids_are_refused_before_each_is_looked_at(
    tiny_server: Any, ids: list[int]
) -> None:
    status, body = await post(tiny_server, "/v1/completions", prompt=ids)
    assert (status, body["error"]["param"]) == (400, "prompt")
    assert body["error"]["code"] == "context_length_exceeded"
    asked = {"prompt": ids, "truncate_prompt_tokens": 5, "max_tokens": 1}
    status, body = await post(tiny_server, "/v1/completions", **asked)
    if ids[-1] == 97:
        assert (status, body["usage"]["prompt_tokens"]) == (200, 5)
    else:
        assert (status, body["error"]["param"]) == (400, "prompt")


async def test_other_requests_are_answered_while_a_long_text_is_detokenized(
    tiny_server: Any,
) -> None:
    _, two = await post(tiny_server, "/tokenize", prompt="ab", add_special_tokens=False)
    a, b = two["tokens"]
    long = asyncio.create_task(post(tiny_server, "/detokenize", tokens=[a] * 1_000_000))
    status, body = await post(tiny_server, "/detokenize", tokens=[b])
    assert (status, body["prompt"]) == (200, "b")
    status, body = await long
    assert (status, body["prompt"]) == (200, "a" * 1_000_000)
