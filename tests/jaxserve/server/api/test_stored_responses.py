"""Responses that are stored: going on from them, and whose they are."""

from __future__ import annotations

import json
from typing import Any

import aiohttp

from jaxserve.server.response_store import ResponseStore

LIMIT = aiohttp.ClientTimeout(total=120)  # only against hanging


async def ask(server: Any, method: str, path: str = "", **fields: Any) -> tuple[int, Any]:
    body = {"temperature": 0, "max_output_tokens": 40} | fields if method == "POST" else None
    async with (
        aiohttp.ClientSession(server.url, timeout=LIMIT) as http,
        http.request(method, f"/v1/responses{path}", json=body) as response,
    ):
        return response.status, await response.json()


def saying(text: str) -> dict[str, Any]:
    return {"structured_outputs": {"choice": [text]}}


async def test_a_conversation_goes_on(tiny_server: Any) -> None:
    _, first = await ask(tiny_server, "POST", input="one", instructions="Be.", **saying("two"))
    assert first["store"] is True
    _, second = await ask(
        tiny_server, "POST", input="three", previous_response_id=first["id"], **saying("four")
    )
    assert second["previous_response_id"] == first["id"]
    whole = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    _, expected = await ask(tiny_server, "POST", input=whole, **saying("four"))
    assert second["usage"]["input_tokens"] == expected["usage"]["input_tokens"]
    _, third = await ask(tiny_server, "POST", input="5", previous_response_id=second["id"])
    assert third["usage"]["input_tokens"] > second["usage"]["input_tokens"]


async def test_a_stored_response_is_returned_and_removed(tiny_server: Any) -> None:
    _, made = await ask(tiny_server, "POST", input="x", **saying("y"))
    assert await ask(tiny_server, "GET", f"/{made['id']}") == (200, made)
    status, removed = await ask(tiny_server, "DELETE", f"/{made['id']}")
    assert (status, removed["deleted"], removed["id"]) == (200, True, made["id"])
    for method in ("GET", "DELETE"):
        status, refused = await ask(tiny_server, method, f"/{made['id']}")
        assert (status, refused["error"]["code"]) == (404, "response_not_found")
    status, refused = await ask(tiny_server, "POST", input="x", previous_response_id=made["id"])
    assert (status, refused["error"]["param"]) == (400, "previous_response_id")


async def test_store_false_keeps_nothing(tiny_server: Any) -> None:
    _, made = await ask(tiny_server, "POST", input="x", store=False, **saying("y"))
    assert made["store"] is False
    assert (await ask(tiny_server, "GET", f"/{made['id']}"))[0] == 404


async def test_a_streamed_response_is_stored(tiny_server: Any) -> None:
    body = {"input": "x", "stream": True, "max_output_tokens": 9, **saying("y")}
    async with (
        aiohttp.ClientSession(tiny_server.url, timeout=LIMIT) as http,
        http.post("/v1/responses", json=body) as response,
    ):
        events = (await response.text()).strip().split("\n\n")
    last = json.loads(events[-1].partition("data: ")[2])["response"]
    assert await ask(tiny_server, "GET", f"/{last['id']}") == (200, last)


async def test_sampling_settings_of_chats(tiny_server: Any) -> None:
    asked = {"input": "x", "temperature": 1.5, "seed": 7, "store": False}
    one, other = [(await ask(tiny_server, "POST", **asked))[1]["output"] for _ in range(2)]
    assert one[0]["content"] == other[0]["content"]
    _, greedy = await ask(tiny_server, "POST", **asked | {"top_k": 1})
    _, zero = await ask(tiny_server, "POST", **asked | {"temperature": 0})
    assert greedy["output"][0]["content"] == zero["output"][0]["content"]
    _, stopped = await ask(tiny_server, "POST", input="x", stop="lo", **saying("hello"))
    assert stopped["output"][0]["content"][0]["text"] == "hel"
    status, refused = await ask(tiny_server, "POST", input="x", top_k=-5)
    assert (status, refused["error"]["param"]) == (400, "top_k")


async def test_tools_that_a_server_would_run_are_refused_by_name(tiny_server: Any) -> None:
    tool = {"type": "mcp", "server_label": "x", "server_url": "http://127.0.0.1/"}
    status, refused = await ask(tiny_server, "POST", input="x", tools=[tool])
    assert (status, refused["error"]["param"]) == (400, "tools[0].type")
    assert "mcp" in refused["error"]["message"]


def test_the_store_is_bounded_and_keeps_keys_apart() -> None:
    store = ResponseStore(2)
    for name in ("a", "b"):
        store.put("key", name, {"id": name}, [{"role": "user", "content": name}])
    assert store.get("key", "a") is not None  # used last, so that b goes first
    store.put("key", "c", {"id": "c"}, [])
    assert store.get("key", "b") is None
    assert store.get("other", "a") is None
    found = store.get("key", "a")
    assert found is not None
    assert found.conversation() == [{"role": "user", "content": "a"}]
    assert store.delete("other", "a") is False
    assert store.delete("key", "a") is True
    huge = "x" * 2**26
    store.put("key", "d", {}, [huge])
    assert store.get("key", "d") is None
    off = ResponseStore(0)
    off.put("key", "a", {}, [])
    assert off.get("key", "a") is None
