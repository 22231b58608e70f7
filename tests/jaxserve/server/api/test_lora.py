"""Adapters over HTTP: names, hot loads, a watched folder, and 200 of them over 8 slots."""

from __future__ import annotations

import asyncio
import json
import random
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from bench.common.server_client import scrape
from tests.adapter_folders import write_adapter
from tests.jaxserve.server.conftest import ServerProcess

pytestmark = pytest.mark.slow

LIMIT = aiohttp.ClientTimeout(total=300)  # only against hanging
MANY = 200


@pytest.fixture(scope="module")
def adapters(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of adapters; those in `watched` are there when the server starts."""
    root = tmp_path_factory.mktemp("adapters")
    for name, seed in (("one", 1), ("two", 2), ("three", 3)):
        write_adapter(root / name, tiny_llama, seed, 4)
    for i in range(MANY):
        write_adapter(root / "watched" / f"m{i}", tiny_llama, 100 + i, 2, ("q_proj", "v_proj"), 1.0)
    return root


@pytest.fixture(scope="module")
def lora_server(tiny_flags: tuple[str, ...], adapters: Path) -> Iterator[ServerProcess]:
    own = ServerProcess.launch(
        *tiny_flags,
        *("--lora", f"one={adapters / 'one'}", f"two={adapters / 'two'}"),
        *("--lora-folder", str(adapters / "watched"), "--max-loras", "8", "--max-lora-rank", "8"),
        *("--max-cpu-loras", "16", "--enable-dev-endpoints", "--forbid-compile"),
        *("--lora-targets", "q_proj", "o_proj", "gate_proj", "down_proj"),
    )
    try:
        own.wait_ready()
        yield own
    finally:
        own.stop()


@pytest.fixture
async def http(lora_server: ServerProcess) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(lora_server.url, timeout=LIMIT) as session:
        yield session


async def complete(http: aiohttp.ClientSession, model: str, **body: Any) -> Any:
    """A completion's text and logprobs."""
    body = {
        "model": model,
        "prompt": "Once upon a time",
        "max_tokens": 8,
        "temperature": 0,
        "logprobs": 2,
        "ignore_eos": True,
        **body,
    }
    async with http.post("/v1/completions", json=body) as response:
        answer = await response.json()
        assert response.status == 200, answer
    assert answer["model"] == model
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "length"
    return choice["text"], json.dumps(choice["logprobs"])


async def post(http: aiohttp.ClientSession, path: str, **body: Any) -> tuple[int, Any]:
    async with http.post(path, json=body) as response:
        return response.status, await response.json()


async def names(http: aiohttp.ClientSession) -> dict[str, Any]:
    async with http.get("/v1/models") as response:
        return {model["id"]: model for model in (await response.json())["data"]}


async def until_listed(http: aiohttp.ClientSession, name: str, listed: bool) -> None:
    for _ in range(2000):  # however slow the machine; ends as soon as it is so
        if (name in await names(http)) == listed:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{name} listed: {not listed}")


async def test_models_list_adapters_with_their_parent(
    http: aiohttp.ClientSession, adapters: Path
) -> None:
    found = await names(http)
    assert list(found)[:3] == ["tiny", "one", "two"]
    assert len(found) == 3 + MANY
    assert found["tiny"]["parent"] is None
    assert found["one"]["parent"] == "tiny"
    assert found["one"]["root"] == str(adapters / "one")
    async with http.get("/v1/models/two") as response:
        assert (await response.json())["parent"] == "tiny"
    async with http.get("/v1/models/nobody") as response:
        assert response.status == 404


async def test_every_endpoint_takes_an_adapter_as_its_model(http: aiohttp.ClientSession) -> None:
    async def answers(model: str) -> list[Any]:
        messages = [{"role": "user", "content": "Hi"}]
        limits = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
        _, chat = await post(http, "/v1/chat/completions", model=model, messages=messages, **limits)
        _, response = await post(
            http, "/v1/responses", model=model, input="Hi", max_output_tokens=16, temperature=0
        )
        _, embedded = await post(http, "/v1/embeddings", model=model, input="Hi")
        assert [chat["model"], response["model"], embedded["model"]] == [model] * 3
        return [
            chat["choices"][0]["message"]["content"],
            str(response["output"][0]["content"]),
            str(embedded["data"][0]["embedding"]),
            (await complete(http, model))[0],
        ]

    base, one, two = [await answers(model) for model in ("tiny", "one", "two")]
    for several in zip(base, one, two, strict=True):
        assert len(set(several)) == 3


async def test_an_adapter_is_loaded_replaced_and_unloaded_in_the_middle_of_streams(
    http: aiohttp.ClientSession, adapters: Path
) -> None:
    status, answer = await post(
        http, "/v1/load_lora_adapter", lora_name="hot", lora_path=str(adapters / "one")
    )
    assert (status, answer) == (
        200,
        {"status": "Success: LoRA adapter 'hot' added successfully."},
    )
    long = {"max_tokens": 400, "prompt": "A long stream"}
    want = await complete(http, "one", **long)
    body = {"model": "hot", "temperature": 0, "ignore_eos": True, "stream": True, **long}
    texts = []
    async with http.post("/v1/completions", json=body) as stream:
        async for line in stream.content:
            if line.startswith(b"data: {"):
                texts.append(json.loads(line[6:])["choices"][0]["text"])
            if len(texts) == 1:
                taken = await post(
                    http, "/v1/load_lora_adapter", lora_name="hot", lora_path=str(adapters / "two")
                )
                assert taken[0] == 400
                assert "load_inplace" in taken[1]["error"]["message"]
                replaced = await post(
                    http,
                    "/v1/load_lora_adapter",
                    lora_name="hot",
                    lora_path=str(adapters / "two"),
                    load_inplace=True,
                )
                assert replaced[0] == 200
                # Others push the stream's adapter out of what memory keeps.
                await asyncio.gather(*(complete(http, f"m{i}") for i in range(40)))
                assert await complete(http, "hot", **long) == await complete(http, "two", **long)
                assert (await post(http, "/v1/unload_lora_adapter", lora_name="hot"))[0] == 200
                texts.append("")
    assert "".join(texts) == want[0]
    status, answer = await post(http, "/v1/unload_lora_adapter", lora_name="hot")
    assert (status, answer["error"]["param"]) == (404, "lora_name")
    status, answer = await post(http, "/v1/completions", model="hot", prompt="x")
    assert (status, answer["error"]["code"]) == (404, "model_not_found")


async def test_bad_adapters_are_clear_errors_and_harm_nobody(
    http: aiohttp.ClientSession, adapters: Path, tiny_llama: Path, tmp_path: Path
) -> None:
    before = await complete(http, "one")
    dora = write_adapter(tmp_path / "dora", tiny_llama, 1, 4, use_dora=True)
    large = write_adapter(tmp_path / "large", tiny_llama, 1, 9)
    cut = write_adapter(tmp_path / "cut", tiny_llama, 1, 4)
    weights = cut / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7])
    other = write_adapter(tmp_path / "other", tiny_llama, 1, 4, ("lm_head",))
    for folder, status, message in (
        (dora, 400, "DoRA"),
        (large, 400, "has rank 9, and this server takes at most 8"),
        (cut, 400, "damaged or truncated"),
        (other, 400, "lm_head can't have an adapter here"),
        (tmp_path / "nowhere", 404, "there is no adapter_config.json"),
        (Path("/dev/null"), 404, "there is no adapter_config.json"),
    ):
        got, answer = await post(
            http, "/v1/load_lora_adapter", lora_name="bad", lora_path=str(folder)
        )
        assert (got, answer["error"]["param"]) == (status, "lora_path")
        assert message in answer["error"]["message"]
    for name in ("", "a\nb", "x" * 300, "tiny"):
        got, answer = await post(
            http, "/v1/load_lora_adapter", lora_name=name, lora_path=str(adapters / "one")
        )
        assert (got, answer["error"]["param"]) == (400, "lora_name")
    assert "bad" not in await names(http)
    assert await complete(http, "one") == before


async def test_the_folder_is_followed(
    http: aiohttp.ClientSession, adapters: Path, tiny_llama: Path
) -> None:
    new = adapters / "watched" / "new"
    shutil.copytree(adapters / "three", new)
    await until_listed(http, "new", True)
    status, _ = await post(
        http, "/v1/load_lora_adapter", lora_name="three", lora_path=str(adapters / "three")
    )
    assert status == 200
    assert await complete(http, "new") == await complete(http, "three")
    write_adapter(adapters / "other", tiny_llama, 9, 4)
    for file in (adapters / "other").iterdir():
        shutil.copy(file, new / f"{file.name}.new")
        (new / f"{file.name}.new").replace(new / file.name)
    old = await complete(http, "three")
    for _ in range(2000):
        if await complete(http, "new", cache_salt=str(random.random())) != old:
            break
        await asyncio.sleep(0.05)
    status, _ = await post(
        http, "/v1/load_lora_adapter", lora_name="other", lora_path=str(adapters / "other")
    )
    assert await complete(http, "new") == await complete(http, "other")
    shutil.rmtree(new)
    await until_listed(http, "new", False)


async def test_200_adapters_over_8_slots_under_load(http: aiohttp.ClientSession) -> None:
    """Three requests for each adapter, all at once, beside requests of the base model."""
    models = [f"m{i}" for i in range(MANY)]
    alone = {model: await complete(http, model) for model in ["tiny", *models]}
    assert len(set(alone.values())) == MANY + 1
    jobs = [*models * 3, *["tiny"] * 100]
    random.Random(1).shuffle(jobs)
    salts = [{"cache_salt": str(i)} if i % 2 else {} for i in range(len(jobs))]
    several = await asyncio.gather(
        *(complete(http, model, **salt) for model, salt in zip(jobs, salts, strict=True))
    )
    for model, answer in zip(jobs, several, strict=True):
        assert answer == alone[model], model
    reading = await scrape(http)
    assert reading.total("jaxserve:compiles_after_ready_total") == 0
