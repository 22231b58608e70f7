"""Guesses as a client sees them: its prediction, the counts in usage, the metrics."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.jaxserve.server.conftest import ServerProcess

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def speculating(tiny_flags: tuple[str, ...]) -> Iterator[ServerProcess]:
    server = ServerProcess.launch(
        *tiny_flags, "--speculation", "ngram", "--num-speculative-tokens", "3"
    )
    try:
        server.wait_ready()
        yield server
    finally:
        server.stop()


def post(server: ServerProcess, body: dict[str, Any]) -> tuple[int, dict[str, Any], str | None]:
    """Status, body, and the header that names ignored fields."""
    request = urllib.request.Request(
        f"{server.url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.status, json.load(response), response.headers["X-Ignored-Fields"]
    except urllib.error.HTTPError as error:
        return error.code, json.load(error), None


def answer(server: ServerProcess, **fields: Any) -> dict[str, Any]:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Repeat it."}],
        "seed": 5,
        "max_tokens": 60,
        "ignore_eos": True,
        "logprobs": True,
    }
    status, found, ignored = post(server, body | fields)
    assert status == 200, found
    return found | {"ignored": ignored}


def counted(server: ServerProcess) -> dict[str, float]:
    with urllib.request.urlopen(f"{server.url}/metrics", timeout=120) as response:
        text = response.read().decode()
    found = re.findall(r"^vllm:spec_decode_num_(\w+)_total\{(.*)\} (\S+)$", text, re.MULTILINE)
    counts: dict[str, float] = {}
    for name, labels, value in found:
        if (position := re.search(r'position="(\d+)"', labels)) is not None:
            name += position[1]
        counts[name] = float(value)
    return counts


@pytest.mark.parametrize("in_parts", [False, True])
def test_a_right_prediction_is_taken_and_changes_nothing_else(
    speculating: ServerProcess, tiny_server: ServerProcess, in_parts: bool
) -> None:
    plain = answer(tiny_server)
    text = "".join(  # of ASCII, which the tokenizer gives back as it was
        entry["token"] for entry in plain["choices"][0]["logprobs"]["content"]
    )
    content = [{"type": "text", "text": part} for part in (text[:7], text[7:])]
    prediction = {"type": "content", "content": content if in_parts else text}
    before = counted(speculating)
    helped = answer(speculating, prediction=prediction)
    after = counted(speculating)
    assert helped["choices"] == plain["choices"]
    assert helped["ignored"] is None
    grew = {name: after[name] - before[name] for name in after}
    details = helped["usage"]["completion_tokens_details"]
    accepted, rejected = (details[f"{n}_prediction_tokens"] for n in ("accepted", "rejected"))
    assert accepted > 0
    assert grew["drafts"] > 0
    assert grew["accepted_tokens"] == accepted
    assert grew["draft_tokens"] == accepted + rejected
    by_position = [grew[f"accepted_tokens_per_pos{position}"] for position in range(3)]
    assert sum(by_position) == accepted
    assert by_position == sorted(by_position, reverse=True)


def test_without_speculation_a_prediction_is_named_as_ignored(tiny_server: ServerProcess) -> None:
    plain = answer(tiny_server)
    found = answer(tiny_server, prediction={"type": "content", "content": "abc"})
    assert found["choices"] == plain["choices"]
    assert (plain["ignored"], found["ignored"]) == (None, "prediction")
    details = found["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] == details["rejected_prediction_tokens"] == 0


@pytest.mark.parametrize("prediction", ["text", {"type": "other", "content": "a"}, {"content": 1}])
def test_another_form_is_refused(speculating: ServerProcess, prediction: Any) -> None:
    body = {"messages": [{"role": "user", "content": "a"}], "prediction": prediction}
    status, found, _ = post(speculating, body)
    assert status == 400
    assert "prediction" in found["error"]["message"]
