"""Metrics, logs, probes and admin endpoints of a real server."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from bench.common.server_client import Metrics, scrape

pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[4]
METRIC = re.compile(r"(?:vllm:|jaxserve:|http_)\w+")
# Only against hanging; nothing is measured.
LIMIT = aiohttp.ClientTimeout(total=120)
LONG = {"prompt": "Once upon a time", "max_tokens": 900, "ignore_eos": True, "temperature": 0}


@pytest.fixture
async def http(server: Any) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(server.url, timeout=LIMIT) as session:
        yield session


async def settled(http: aiohttp.ClientSession) -> Metrics:
    """A scrape after the engine has reported that nothing runs."""
    for _ in range(200):
        reading = await scrape(http)
        if not reading.one("vllm:num_requests_running") + reading.one("vllm:num_requests_waiting"):
            return reading
        await asyncio.sleep(0.05)
    raise AssertionError("requests are left running")


async def complete(http: aiohttp.ClientSession, server: Any, **body: Any) -> Any:
    body = {"model": server.model, "temperature": 0, "ignore_eos": True, **body}
    async with http.post("/v1/completions", json=body) as response:
        assert response.status == 200
        return await response.json()


async def test_metrics_of_requests(server: Any, http: aiohttp.ClientSession) -> None:
    before = await settled(http)
    prompt = "Metrics are counted here, one by one: " * 3
    answers = [await complete(http, server, prompt=prompt, max_tokens=4, n=n) for n in (1, 2)]
    after = await settled(http)

    def grew(name: str, **labels: str) -> float:
        return after.one(name, **labels) - before.one(name, **labels)

    prompt_tokens = answers[0]["usage"]["prompt_tokens"]
    assert grew("vllm:request_success_total", finished_reason="length") == 3
    assert grew("vllm:generation_tokens_total") == 12
    assert grew("vllm:prompt_tokens_total") == 2 * prompt_tokens
    assert grew("vllm:prefix_cache_queries_total") >= 2 * prompt_tokens
    # The second request finds all the full blocks of the first.
    assert grew("vllm:prefix_cache_hits_total") >= (prompt_tokens - 1) // 16 * 16
    for name in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
        assert grew(f"vllm:{name}_seconds_count") == 3
    assert grew("vllm:inter_token_latency_seconds_count") == 9
    assert grew("vllm:time_per_output_token_seconds_count") == 9
    assert grew("vllm:request_params_n_sum") == 3
    assert grew("vllm:request_params_n_count") == 2
    assert grew("vllm:request_params_max_tokens_bucket", le="5.0") == 2
    assert grew("vllm:request_generation_tokens_sum") == 12
    assert grew("jaxserve:step_duration_seconds_count") >= 8
    # Each prompt token that is computed, and each output token: the first request's prompt is
    # computed whole, the second's but for its cached blocks, with the last token once more for its
    # second choice; and 12 tokens are drawn.
    cached = answers[1]["usage"]["prompt_tokens_details"]["cached_tokens"]
    computed = answers[0]["usage"]["prompt_tokens"] + prompt_tokens - cached + 1
    assert grew("vllm:iteration_tokens_total_sum") == computed + 12
    assert after.one("http_requests_total", handler="/v1/completions", status="2xx") >= 2
    assert after.one("jaxserve:compiles_after_ready_total") == 0
    # The second request's choices share its last, partly filled block, until one of them writes.
    assert prompt_tokens % 16
    assert grew("jaxserve:block_copies_total") == 1
    assert after.one("vllm:kv_cache_usage_perc") == 0
    assert after.one("vllm:cache_config_info", block_size="16") == 1
    # The parts of a request's time add up to at most the whole.
    parts = sum(
        grew(f"vllm:request_{part}_time_seconds_sum") for part in ("queue", "prefill", "decode")
    )
    assert 0 < parts <= grew("vllm:e2e_request_latency_seconds_sum") + 1e-6


async def test_every_metric_of_the_dashboard_exists(
    http: aiohttp.ClientSession,
) -> None:
    dashboard = json.loads((REPOSITORY / "docs" / "grafana-dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    names = {name for expr in asked for name in METRIC.findall(expr)}
    assert len(names) > 20
    await scrape(http)  # which is counted by the next
    assert names <= {sample.name for sample in (await scrape(http)).samples}


async def test_load_and_an_aborted_request(server: Any, http: aiohttp.ClientSession) -> None:
    before = await settled(http)
    async with http.post(
        "/v1/completions", json={"model": server.model, "stream": True, **LONG}
    ) as response:
        await response.content.readline()
        async with http.get("/load") as load:
            assert await load.json() == {"server_load": 1}
        during = await scrape(http)
        assert during.one("vllm:num_requests_running") == 1
        assert during.one("vllm:kv_cache_usage_perc") > 0
        async with http.post("/reset_prefix_cache") as refused:
            assert refused.status == 409
        response.close()
    after = await settled(http)
    aborted = {"finished_reason": "abort"}
    name = "vllm:request_success_total"
    assert after.one(name, **aborted) == before.one(name, **aborted) + 1
    assert after.one("vllm:kv_cache_usage_perc") == 0


async def test_reset_prefix_cache(server: Any, http: aiohttp.ClientSession) -> None:
    prompt = "This prompt is long enough to fill some blocks of the cache. " * 4
    hits = []
    for reset in (False, False, True):
        before = await settled(http)
        if reset:
            async with http.post("/reset_prefix_cache") as response:
                assert response.status == 200
        await complete(http, server, prompt=prompt, max_tokens=1)
        name = "vllm:prefix_cache_hits_total"
        hits.append((await settled(http)).one(name) - before.one(name))
    assert hits[1] > hits[0] == hits[2] == 0


async def test_a_profile_is_written(server: Any, http: aiohttp.ClientSession) -> None:
    async with http.post("/start_profile") as response:
        assert response.status == 200
        folder = Path((await response.json())["folder"])
    async with http.post("/start_profile") as response:
        assert response.status == 409
    await complete(http, server, prompt="x", max_tokens=2)
    async with http.post("/stop_profile") as response:
        assert response.status == 200
    assert list(folder.rglob("*.xplane.pb"))
    async with http.post("/stop_profile") as response:
        assert response.status == 409


async def test_server_info(server: Any, http: aiohttp.ClientSession) -> None:
    async with http.get("/server_info") as response:
        info = await response.json()
    assert info["models"] == [server.model]
    assert info["engine"]["max_num_seqs"] == 4
    assert info["server"]["max_choices"] == 128
    assert "api_key" not in info["server"]


async def test_the_access_log_is_json_without_prompts(
    server: Any, http: aiohttp.ClientSession
) -> None:
    secret = "xyzzy"
    headers = {"X-Request-Id": "my-own-id"}
    body = {"model": server.model, "prompt": secret, "max_tokens": 3, "ignore_eos": True}
    async with http.post("/v1/completions", json=body, headers=headers) as response:
        assert response.headers["X-Request-Id"] == "my-own-id"
        usage = (await response.json())["usage"]
    async with http.get("/nowhere", headers={"X-Request-Id": "not {good}"}) as response:
        made = response.headers["X-Request-Id"]
        assert made.startswith("req-")
    lines = [json.loads(line) for line in server.errors().splitlines() if line.startswith("{")]
    by_id = {line["request_id"]: line for line in lines}
    entry = by_id["my-own-id"]
    assert (entry["method"], entry["path"], entry["status"]) == ("POST", "/v1/completions", 200)
    assert entry["prompt_tokens"] == usage["prompt_tokens"]
    assert entry["completion_tokens"] == 3
    assert entry["ms"] > 0
    assert by_id[made]["status"] == 404
    assert secret not in server.errors()


async def test_tenants_and_a_full_queue(start_server: Callable[..., Any]) -> None:
    server = start_server(
        *("--api-key", "k1", "--api-key", "k2", "--salt-cache-by-key"),
        *("--log-prompts", "--max-queued-requests", "1"),
    )
    prompt = "What one tenant has cached is nobody else's business. " * 4
    async with aiohttp.ClientSession(server.url, timeout=LIMIT) as http:

        def post(key: str, **body: Any) -> Any:
            headers = {"Authorization": f"Bearer {key}"}
            body = {"model": server.model, "prompt": prompt, "max_tokens": 1, **body}
            return http.post("/v1/completions", json=body, headers=headers)

        async with post("wrong") as response:
            assert response.status == 401
        hits = []
        for key in ("k1", "k2", "k1"):
            async with post(key) as response:
                assert response.status == 200
            hits.append((await settled(http)).one("vllm:prefix_cache_hits_total"))
        assert hits[0] == hits[1] == 0 < hits[2]

        async with post("k1", **LONG, n=4, stream=True) as running:
            await running.content.readline()
            waiting = asyncio.create_task(post("k2", **LONG).__aenter__())
            while not (await scrape(http)).one("vllm:num_requests_waiting"):
                await asyncio.sleep(0.05)
            async with post("k1") as response:
                assert response.status == 429
                assert int(response.headers["Retry-After"]) > 0
                assert (await response.json())["error"]["type"] == "rate_limit_error"
            waiting.cancel()
            running.close()
        await settled(http)
    assert prompt.strip() in server.errors()
    assert "k1" not in server.errors()


async def test_tokenize_and_back(server: Any, http: aiohttp.ClientSession) -> None:
    async def post(path: str, **body: Any) -> Any:
        async with http.post(path, json=body) as response:
            return response.status, await response.json()

    text = "Grüße, 世界! " * 300  # more than the context
    status, made = await post("/tokenize", prompt=text, return_token_strs=True)
    assert status == 200
    assert made["count"] == len(made["tokens"]) == len(made["token_strs"]) > 1024
    assert made["max_model_len"] == 1024
    assert await post("/detokenize", tokens=made["tokens"]) == (200, {"prompt": text})

    messages = [{"role": "user", "content": "Hello"}]
    _, chat = await post("/tokenize", model=server.model, messages=messages)
    answer = await post("/v1/chat/completions", model=server.model, messages=messages, max_tokens=1)
    assert chat["count"] == answer[1]["usage"]["prompt_tokens"]
    _, open_ended = await post("/tokenize", messages=messages, add_generation_prompt=False)
    assert open_ended["count"] < chat["count"]
    assert open_ended["tokens"] == chat["tokens"][: open_ended["count"]]

    for path, body, param in (
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": messages}, "prompt"),
        ("/detokenize", {"tokens": [10**6]}, "tokens"),
    ):
        status, refused = await post(path, **body)
        assert (status, refused["error"]["param"]) == (400, param)


async def test_traces_reach_a_collector(start_server: Callable[..., Any]) -> None:
    trace_service_pb2 = pytest.importorskip(
        "opentelemetry.proto.collector.trace.v1.trace_service_pb2"
    )
    spans: list[Any] = []

    async def collect(request: web.Request) -> web.Response:
        sent = trace_service_pb2.ExportTraceServiceRequest.FromString(await request.read())
        spans.extend(
            span
            for resource in sent.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        )
        return web.Response()

    collector = web.Application()
    collector.router.add_post("/v1/traces", collect)
    async with TestServer(collector) as at:
        server = start_server("--otlp-traces-endpoint", str(at.make_url("")))
        trace_id, parent_id = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
        headers = {"traceparent": f"00-{trace_id}-{parent_id}-01", "X-Request-Id": "mine"}
        body = {"model": server.model, "prompt": "x", "max_tokens": 3, "ignore_eos": True}
        async with (
            aiohttp.ClientSession(server.url, timeout=LIMIT) as http,
            http.post("/v1/completions", json=body, headers=headers) as response,
        ):
            assert response.status == 200
        server.process.terminate()
        assert await asyncio.to_thread(server.wait) == 0

    by_name = {span.name: span for span in spans}
    outer, inner = by_name["POST /v1/completions"], by_name["llm_request"]
    assert outer.trace_id.hex() == inner.trace_id.hex() == trace_id
    assert outer.parent_span_id.hex() == parent_id
    assert inner.parent_span_id == outer.span_id
    assert outer.start_time_unix_nano <= inner.start_time_unix_nano < inner.end_time_unix_nano
    told = {entry.key: entry.value for entry in inner.attributes}
    assert told["gen_ai.request.id"].string_value == "mine"
    assert told["gen_ai.usage.completion_tokens"].int_value == 3
    assert told["gen_ai.latency.time_to_first_token"].double_value > 0
    told = {entry.key: entry.value for entry in outer.attributes}
    assert told["http.response.status_code"].int_value == 200
