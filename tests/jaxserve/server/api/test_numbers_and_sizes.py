"""Numbers of any size, prompts that fill the context, names and characters that clients choose."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

LIMIT = aiohttp.ClientTimeout(total=120)  # only against hanging
CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
CONTEXT = 1024  # of the tiny server; one token a byte


async def post(server: Any, path: str, data: Any, **headers: str) -> tuple[int, Any, Any]:
    raw = data if isinstance(data, bytes) else json.dumps({"model": "tiny", **data}).encode()
    async with (
        aiohttp.ClientSession(server.url, timeout=LIMIT, max_field_size=10**6) as http,
        http.post(path, data=raw, headers={"Content-Type": "application/json", **headers}) as got,
    ):
        text = await got.text()
        return got.status, json.loads(text) if text.startswith("{") else text, got.headers


@pytest.mark.parametrize("number", ["9" * 401, "-" + "9" * 30, "1e400"])
@pytest.mark.parametrize("field", ["max_tokens", "seed", "n", "top_k", "priority", "temperature"])
async def test_numbers_of_any_length_are_refused_by_name(
    tiny_server: Any, field: str, number: str
) -> None:
    body = json.dumps({"model": "tiny", **CHAT, field: "NUMBER"}).replace('"NUMBER"', number)
    status, answer, _ = await post(tiny_server, "/v1/chat/completions", body.encode())
    assert status == 400
    assert answer["error"]["message"]


@pytest.mark.parametrize("number", ["9" * 401, "9" * 5000])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", '{"prompt": [NUMBER]}'),
        ("/v1/completions", '{"prompt": "x", "best_of": NUMBER}'),
        ("/v1/completions", '{"prompt": "x", "logit_bias": {"5": NUMBER}}'),
        ("/v1/completions", '{"prompt": "x", "logit_bias": {"NUMBER": 5}}'),
        ("/v1/completions", '{"prompt": "x", "stop_token_ids": [NUMBER]}'),
        ("/v1/completions", '{"prompt": "x", "truncate_prompt_tokens": NUMBER}'),
        ("/v1/responses", '{"input": "x", "max_output_tokens": NUMBER}'),
        ("/v1/embeddings", '{"input": "x", "dimensions": NUMBER}'),
        ("/v1/embeddings", '{"input": [NUMBER]}'),
        ("/detokenize", '{"tokens": [NUMBER]}'),
    ],
)
async def test_numbers_in_other_places(tiny_server: Any, path: str, body: str, number: str) -> None:
    status, answer, _ = await post(tiny_server, path, body.replace("NUMBER", number).encode())
    assert status == 400
    assert answer["error"]["message"]


async def test_digits_in_texts_are_no_numbers(tiny_server: Any) -> None:
    chat = CHAT | {"messages": [{"role": "user", "content": "9" * 401}], "seed": 2**63 - 1}
    status, _, _ = await post(tiny_server, "/v1/chat/completions", chat)
    assert status == 200


@pytest.mark.parametrize("most", [2**64 - 1, 1.7976931348623157e308, 10**40])
async def test_schemas_may_have_large_numbers(tiny_server: Any, most: float) -> None:
    schema = {"type": "integer", "minimum": 5, "maximum": most}
    status, answer, _ = await post(
        tiny_server, "/v1/completions", {"prompt": "x", "guided_json": schema}
    )
    assert status == 200, answer
    function = {"name": "f", "parameters": {"type": "object", "properties": {"a": schema}}}
    tools = {"tools": [{"type": "function", "function": function}], "tool_choice": "none"}
    status, answer, _ = await post(tiny_server, "/v1/chat/completions", CHAT | tools)
    assert status == 200, answer


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "x", "y" * 10**6: 1},
        {"prompt": "x", "stop": {"b" * 10**6: 1}},
        {"prompt": "x", "model": "c" * 10**6},
        {"prompt": "x", "response_format": {"type": "d" * 10**6}},
        {"prompt": "x", "response_format": {"type": "text", "é" * 10**5: 1}},
    ],
)
async def test_errors_quote_no_more_than_a_line(tiny_server: Any, body: Any) -> None:
    status, answer, headers = await post(tiny_server, "/v1/completions", body)
    assert status in (400, 404) or "X-Ignored-Fields" in headers
    assert len(json.dumps(answer, ensure_ascii=False)) < 2000
    assert len(headers.get("X-Ignored-Fields", "")) < 2000


async def test_a_prompt_that_fills_the_context_is_served_where_nothing_is_generated(
    tiny_server: Any,
) -> None:
    _, counted, _ = await post(tiny_server, "/tokenize", {"prompt": "x"})
    full = "x" * (CONTEXT - (counted["count"] - 1))
    for path, body in (
        ("/v1/embeddings", {"input": full}),
        ("/v1/completions", {"prompt": full, "echo": True, "max_tokens": 0}),
    ):
        status, answer, _ = await post(tiny_server, path, body)
        assert status == 200, answer
        assert answer["usage"]["prompt_tokens"] == CONTEXT
        key = "input" if "input" in body else "prompt"
        status, answer, _ = await post(tiny_server, path, body | {key: full + "x"})
        assert status == 400
        assert answer["error"]["code"] == "context_length_exceeded"
    assert answer["error"]["param"] == "prompt"
    status, answer, _ = await post(tiny_server, "/v1/completions", {"prompt": full})
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


@pytest.mark.slow
async def test_the_servers_own_limit_of_outputs_is_clamped(start_tiny: Any) -> None:
    server = start_tiny("--max-output-tokens", "48", "--max-model-len", "64")
    for length in (1, 20):
        messages = [{"role": "user", "content": "x" * length}]
        asked = {"messages": messages, "ignore_eos": True}
        status, answer, _ = await post(server, "/v1/chat/completions", asked)
        assert status == 200
        usage = answer["usage"]
        assert usage["completion_tokens"] == min(48, 64 - usage["prompt_tokens"])
    assert usage["completion_tokens"] < 48
    # Each prompt of a completion has what is left to it, and its own default of 16.
    asked = {"prompt": ["x" * 5, "x" * 55], "ignore_eos": True, "return_token_ids": True}
    status, answer, _ = await post(server, "/v1/completions", asked)
    assert status == 200, answer
    assert [len(choice["token_ids"]) for choice in answer["choices"]] == [16, 9]
    cut = {"prompt": "x" * 300, "truncate_prompt_tokens": -1, "ignore_eos": True}
    status, answer, _ = await post(server, "/v1/completions", cut)
    assert (status, answer["usage"]["prompt_tokens"]) == (200, 64 - 16)
    assert answer["usage"]["completion_tokens"] == 16
    status, answer, _ = await post(server, "/v1/completions", asked | {"max_tokens": 40})
    assert (status, answer["error"]["param"]) == (400, "max_tokens")


@pytest.mark.slow
async def test_a_servers_limit_below_the_apis_default(start_tiny: Any) -> None:
    server = start_tiny("--max-output-tokens", "8")
    asked = {"prompt": "x", "ignore_eos": True}
    status, answer, _ = await post(server, "/v1/completions", asked)
    assert (status, answer["usage"]["completion_tokens"]) == (200, 8)
    status, answer, _ = await post(server, "/v1/completions", asked | {"max_tokens": 9})
    assert (status, answer["error"]["param"]) == (400, "max_tokens")
    status, answer, _ = await post(server, "/v1/completions", asked | {"min_tokens": 9})
    assert (status, answer["error"]["param"]) == (400, "min_tokens")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"prompt": "x", "max_tokens": 1}),
        ("/v1/responses", {"input": "x", "max_output_tokens": 1}),
        ("/v1/embeddings", {"input": "x"}),
    ],
)
async def test_a_request_id_in_the_body_is_taken(tiny_server: Any, path: str, body: Any) -> None:
    named = body | {"request_id": "mine-1"}
    answers = await asyncio.gather(*(post(tiny_server, path, named) for _ in range(2)))
    ids = [(status, headers["X-Request-Id"]) for status, _, headers in answers]
    assert ids == [(200, "mine-1")] * 2
    status, _, headers = await post(tiny_server, path, named, **{"X-Request-Id": "proxy-2"})
    assert (status, headers["X-Request-Id"]) == (200, "proxy-2")
    status, answer, _ = await post(tiny_server, path, body | {"request_id": "two words"})
    assert (status, answer["error"]["param"]) == (400, "request_id")


async def test_a_model_needs_no_name_where_one_is_served(tiny_server: Any) -> None:
    status, answer, _ = await post(tiny_server, "/v1/chat/completions", json.dumps(CHAT).encode())
    assert (status, answer["model"]) == (200, "tiny")


async def test_streamed_events_hold_no_character_that_ends_a_line(tiny_server: Any) -> None:
    text = "a\u2028b\u2029c\u0085d"
    body = CHAT | {"model": "tiny", "stream": True, "max_tokens": 40, "guided_choice": [text]}
    async with (
        aiohttp.ClientSession(tiny_server.url, timeout=LIMIT) as http,
        http.post("/v1/chat/completions", json=body) as response,
    ):
        data = (await response.read()).decode()
    events = [line.removeprefix("data: ") for line in data.splitlines() if line]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks) == text


async def test_large_headers_are_served(tiny_server: Any) -> None:
    status, _, _ = await post(tiny_server, "/v1/chat/completions", CHAT, Cookie="c" * 12_288)
    assert status == 200


async def test_the_prompt_ids_of_best_of_are_the_choices_own(tiny_server: Any) -> None:
    asked = {"prompt": ["a", "b"], "best_of": 2, "return_token_ids": True, "max_tokens": 2}
    status, answer, _ = await post(tiny_server, "/v1/completions", asked | {"temperature": 1})
    assert status == 200
    for choice, text in zip(answer["choices"], "ab", strict=True):
        _, tokens, _ = await post(tiny_server, "/tokenize", {"prompt": text})
        assert choice["prompt_token_ids"] == tokens["tokens"]


@pytest.mark.parametrize(
    "accept",
    [
        "text/plain",
        "application/openmetrics-text;version=1.0.0",
        "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
    ],
)
async def test_metrics_keep_their_colons_in_every_format(tiny_server: Any, accept: str) -> None:
    async with (
        aiohttp.ClientSession(tiny_server.url, timeout=LIMIT) as http,
        http.get("/metrics", headers={"Accept": accept}) as response,
    ):
        text = await response.text()
        wanted = "openmetrics" if "openmetrics" in accept else "text/plain"
        assert wanted in response.headers["Content-Type"]
    assert "vllm_" not in text
    names = {family.name for family in text_string_to_metric_families(text)}
    assert "vllm:num_requests_running" in names


async def test_reasoning_is_counted(tiny_server: Any) -> None:
    asked = {
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 40,
        "chat_template_kwargs": {"deep": True},
    }
    status, answer, _ = await post(tiny_server, "/v1/chat/completions", asked)
    assert status == 200
    details = answer["usage"]["completion_tokens_details"]
    reasoning = answer["choices"][0]["message"].get("reasoning") or ""
    _, counted, _ = await post(
        tiny_server, "/tokenize", {"prompt": reasoning, "add_special_tokens": False}
    )
    assert details["reasoning_tokens"] == min(
        counted["count"], answer["usage"]["completion_tokens"]
    )
    assert details["reasoning_tokens"] > 0


async def test_ids_of_a_response_have_openais_prefixes(tiny_server: Any) -> None:
    status, answer, _ = await post(
        tiny_server, "/v1/responses", {"input": "x", "max_output_tokens": 4}
    )
    assert status == 200
    assert answer["id"].startswith("resp_")
    prefixes = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_"}
    assert answer["output"]
    assert all(item["id"].startswith(prefixes[item["type"]]) for item in answer["output"])
