"""Requests of real clients, most of them with the history of a first turn, as they were recorded.

Each client ran against a program that answered with reasoning and a call, then with JSON, and that
wrote down the bodies. Long texts and lists of tools were cut, and ids and paths replaced.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest

pytestmark = pytest.mark.slow

LIMIT = aiohttp.ClientTimeout(total=120)  # only against hanging
RECORDED = json.loads((Path(__file__).parent / "recorded_requests.json").read_text())
SERVED = [
    request
    for request in RECORDED
    if not any(item.get("type") == "item_reference" for item in request["body"].get("input", ()))
]
LIMITS = {"/v1/chat/completions": "max_completion_tokens", "/v1/responses": "max_output_tokens"}
# What they send that changes nothing, places without their numbers.
WITHOUT_EFFECT = {
    "client_metadata",
    "include[reasoning.encrypted_content]",
    "input[].status",
    "input[].summary",
    "messages[].parsed",
    "messages[].provider_specific_fields",
    "messages[].tool_calls[].function.parsed_arguments",
    "messages[].tool_calls[].index",
    "reasoning.summary",
    "tools[] of type web_search",
}


def names(requests: list[dict[str, Any]]) -> list[str]:
    return [request["client"] for request in requests]


async def send(server: Any, request: dict[str, Any], number: int, **more: Any) -> tuple[int, str]:
    body = request["body"] | {LIMITS[request["path"]]: 8} | more
    headers = {"X-Request-Id": f"recorded-{number}"}
    async with (
        aiohttp.ClientSession(server.url, timeout=LIMIT, headers=headers) as http,
        http.post(request["path"], json=body) as response,
    ):
        return response.status, await response.text()


@pytest.mark.parametrize("request_", SERVED, ids=names(SERVED))
async def test_a_recorded_request_is_served(tiny_server: Any, request_: dict[str, Any]) -> None:
    number = RECORDED.index(request_)
    status, text = await send(tiny_server, request_, number)
    assert status == 200, text
    if request_["body"].get("stream"):
        assert "[DONE]" in text or "response.incomplete" in text or "response.completed" in text
        assert '"error"' not in text.replace('"error":null', "")
    else:
        assert json.loads(text)["usage"]


async def test_what_has_no_effect_is_named_in_the_log(tiny_server: Any) -> None:
    ids = [f"recorded-{1000 + number}" for number in range(len(SERVED))]
    for number, request in enumerate(SERVED):
        await send(tiny_server, request, 1000 + number)
    lines: dict[str, Any] = {}
    async with asyncio.timeout(60):  # a line is written after its response
        while not lines.keys() >= set(ids):
            found = [line for line in tiny_server.errors().splitlines() if line.startswith("{")]
            lines = {entry["request_id"]: entry for entry in map(json.loads, found)}
            await asyncio.sleep(0.05)
    named = [name for own in ids for name in lines[own].get("ignored_fields", ())]
    ignored = {re.sub(r"\[\d+\]", "[]", name) for name in named}
    assert ignored == WITHOUT_EFFECT


async def test_a_reference_to_a_stored_item_is_refused_clearly(tiny_server: Any) -> None:
    """The AI SDK sends references in place of reasoning unless its option `store` is false."""
    (request,) = [request for request in RECORDED if request not in SERVED]
    status, text = await send(tiny_server, request, 2000)
    error = json.loads(text)["error"]
    assert (status, error["param"]) == (400, "input[1].type")
    assert "stores none" in error["message"]
    assert "store: false" in error["message"]
