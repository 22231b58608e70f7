"""The official `openai` package against the real server with the demo model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

pytestmark = pytest.mark.slow

FRANCE: Any = [{"role": "user", "content": "What is the capital of France?"}]
TEXT = "The three primary colours are"


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def model(server: Any) -> str:
    return server.model


def counts(usage: Any) -> tuple[int, int, int]:
    """Without the cached tokens, which the second of two equal requests has more of."""
    assert usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens
    return usage.prompt_tokens, usage.completion_tokens, usage.total_tokens


def test_streamed_chat_names_paris(client: openai.OpenAI, model: str) -> None:
    stream = client.chat.completions.create(
        model=model, messages=FRANCE, temperature=0, stream=True, max_completion_tokens=64
    )
    answer = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
    assert "Paris" in answer


def test_streamed_chat_equals_the_whole_response(client: openai.OpenAI, model: str) -> None:
    asked: Any = {"model": model, "messages": FRANCE, "temperature": 0, "max_tokens": 32}
    whole = client.chat.completions.create(**asked)
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    *pieces, last, usage = chunks
    assert pieces[0].choices[0].delta.role == "assistant"
    assert all(c.choices[0].delta.role is None for c in [*pieces[1:], last])
    text = "".join(c.choices[0].delta.content or "" for c in pieces)
    assert text == whole.choices[0].message.content
    assert all(c.choices[0].finish_reason is None for c in pieces)
    assert last.choices[0].finish_reason == whole.choices[0].finish_reason
    assert all(c.usage is None for c in [*pieces, last])
    assert (usage.choices, counts(usage.usage)) == ([], counts(whole.usage))
    assert len({(c.id, c.created, c.model, c.object, c.system_fingerprint) for c in chunks}) == 1
    assert chunks[0].id.startswith("chatcmpl-")
    assert chunks[0].object == "chat.completion.chunk"
    assert chunks[0].system_fingerprint == whole.system_fingerprint


def test_chat_answer_has_openais_form(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=FRANCE, temperature=0, max_tokens=4
    )
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.model) == ("chat.completion", model)
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "length", None)
    assert choice.message.role == "assistant"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4
    assert answer.usage.prompt_tokens > 10
    assert answer.usage.total_tokens == 4 + answer.usage.prompt_tokens


def test_a_conversation_of_several_turns(client: openai.OpenAI, model: str) -> None:
    first = client.chat.completions.create(
        model=model, messages=FRANCE, temperature=0, max_tokens=48
    )
    again: Any = [*FRANCE, first.choices[0].message, {"role": "user", "content": "Thank you."}]
    second = client.chat.completions.create(
        model=model, messages=again, temperature=0, max_tokens=4
    )
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens > first.usage.prompt_tokens


def test_content_parts_are_one_text(client: openai.OpenAI, model: str) -> None:
    asked: Any = {"model": model, "temperature": 0, "max_tokens": 16}
    parts: Any = [{"type": "text", "text": t} for t in ("Name a city.", "In France.")]
    split = client.chat.completions.create(messages=[{"role": "user", "content": parts}], **asked)
    joined = client.chat.completions.create(
        messages=[{"role": "user", "content": "Name a city.\nIn France."}], **asked
    )
    assert split.choices[0].message.content == joined.choices[0].message.content
    assert counts(split.usage) == counts(joined.usage)


def test_streamed_completion_equals_the_whole_response(client: openai.OpenAI, model: str) -> None:
    asked: Any = {"model": model, "prompt": TEXT, "temperature": 0}
    whole = client.completions.create(**asked)
    chunks = list(
        client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    *pieces, usage = chunks
    assert "".join(c.choices[0].text for c in pieces) == whole.choices[0].text
    reasons = [c.choices[0].finish_reason for c in pieces]
    assert reasons == [None] * (len(pieces) - 1) + [whole.choices[0].finish_reason]
    assert (usage.choices, counts(usage.usage)) == ([], counts(whole.usage))
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 16
    assert whole.id.startswith("cmpl-")
    assert {c.object for c in chunks} == {whole.object} == {"text_completion"}


def test_each_chunk_can_have_the_usage_so_far(client: openai.OpenAI, model: str) -> None:
    wanted: Any = {"include_usage": True, "continuous_usage_stats": True}
    asked: Any = {"model": model, "max_tokens": 8, "stream": True, "stream_options": wanted}
    hi: Any = [{"role": "user", "content": "hi"}]
    # A chat's first chunk has the role alone; any other has as many tokens as had come by then.
    for chunks, first in (
        (list(client.chat.completions.create(messages=hi, **asked)), range(1)),
        (list(client.completions.create(prompt=TEXT, **asked)), range(1, 9)),
    ):
        told = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage]
        assert len(told) == len(chunks)
        assert told == sorted(told)
        assert told[0] in first
        assert 1 < told[-1] <= 8


def test_prompts_in_all_forms(client: openai.OpenAI, model: str) -> None:
    asked: Any = {"model": model, "temperature": 0, "max_tokens": 8}

    def texts(prompt: Any) -> list[str]:
        answer = client.completions.create(prompt=prompt, **asked)
        assert [c.index for c in answer.choices] == list(range(len(answer.choices)))
        return [c.text for c in answer.choices]

    one, two = "Once upon a time", "The capital of France is"
    assert texts([one, two]) == texts(one) + texts(two)
    ids = [[504, 2767, 282], [10, 20, 30, 40, 50]]
    assert texts(ids) == texts(ids[0]) + texts(ids[1])


def test_a_streamed_batch_gives_each_prompt_its_index(client: openai.OpenAI, model: str) -> None:
    prompts = ["Once upon a time", "The capital of France is", "1, 2, 3,"]
    asked: Any = {"model": model, "prompt": prompts, "temperature": 0, "max_tokens": 8}
    whole = client.completions.create(**asked)
    texts, reasons = [""] * 3, [[], [], []]  # type: ignore[var-annotated]
    for chunk in client.completions.create(**asked, stream=True):
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        reasons[choice.index].append(choice.finish_reason)
    assert texts == [c.text for c in whole.choices]
    for i, choice in enumerate(whole.choices):
        assert reasons[i] == [None] * (len(reasons[i]) - 1) + [choice.finish_reason]
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 24


def test_usage_counts_the_ids_sent(client: openai.OpenAI, model: str) -> None:
    answer = client.completions.create(
        model=model,
        prompt=[[5, 6, 7], [8, 9]],
        max_tokens=10,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 20)
    assert [c.finish_reason for c in answer.choices] == ["length", "length"]


def test_a_stop_string_ends_the_text_before_it(client: openai.OpenAI, model: str) -> None:
    asked: Any = {"model": model, "prompt": "1, 2, 3, 4,", "temperature": 0, "max_tokens": 24}
    free = client.completions.create(**asked).choices[0].text
    stop = free[6:9]
    stopped = client.completions.create(**asked, stop=[stop]).choices[0]
    assert stopped.text == free[: free.index(stop)]
    assert stopped.finish_reason == "stop"
    assert stopped.model_extra is not None
    assert stopped.model_extra["stop_reason"] == stop
    streamed = client.completions.create(**asked, stop=[stop], stream=True)
    assert "".join(c.choices[0].text for c in streamed) == stopped.text


def test_a_seed_repeats_a_sampled_answer(client: openai.OpenAI, model: str) -> None:
    def draw(seed: int) -> str:
        answer = client.completions.create(
            model=model, prompt=TEXT, temperature=1, max_tokens=24, seed=seed
        )
        return answer.choices[0].text

    assert draw(7) == draw(7)
    assert len({draw(seed) for seed in range(4)}) > 1


def test_models(client: openai.OpenAI, model: str) -> None:
    (listed,) = client.models.list().data
    assert listed.id == model
    assert client.models.retrieve(model) == listed
    with pytest.raises(openai.NotFoundError) as raised:
        client.models.retrieve("gpt-9")
    assert raised.value.code == "model_not_found"


def test_unknown_model(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as raised:
        client.chat.completions.create(model="gpt-9", messages=FRANCE)
    assert (raised.value.code, raised.value.param) == ("model_not_found", "model")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "prompt",
    ["", [], [[]], [["x"]], "word " * 3000, [10**9], [-1], [[1, 2], [49152]]],
    ids=["empty", "no prompt", "no ids", "not ids", "too long", "huge id", "negative id", "beyond"],
)
def test_bad_prompts(client: openai.OpenAI, model: str, prompt: Any, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(model=model, prompt=prompt, stream=stream)
    assert raised.value.type == "invalid_request_error"
    assert raised.value.param is not None
    assert raised.value.param.startswith("prompt")


def test_an_over_long_conversation(client: openai.OpenAI, model: str) -> None:
    messages: Any = [{"role": "user", "content": "word " * 3000}]
    with pytest.raises(openai.BadRequestError, match="maximum context length is 1024") as raised:
        client.chat.completions.create(model=model, messages=messages, stream=True)
    assert (raised.value.code, raised.value.param) == ("context_length_exceeded", "messages")


def test_chat_without_a_limit_goes_to_the_context_limit(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "word " * 960}],
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    assert answer.usage is not None
    assert answer.usage.total_tokens == 1024
    assert answer.choices[0].finish_reason == "length"


def test_n_choices_with_logprobs(client: openai.OpenAI, model: str) -> None:
    asked: Any = {"model": model, "messages": FRANCE, "n": 3, "seed": 7, "max_tokens": 8}
    asked |= {"logprobs": True, "top_logprobs": 2, "temperature": 1}
    whole = client.chat.completions.create(**asked)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in whole.choices}) > 1
    assert whole.usage is not None
    counts = [len(choice.logprobs.content or ()) for choice in whole.choices if choice.logprobs]
    assert sum(counts) == whole.usage.completion_tokens
    streamed: dict[int, list[Any]] = {0: [], 1: [], 2: []}
    for chunk in client.chat.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += (choice.logprobs and choice.logprobs.content) or []
    for choice in whole.choices:
        assert choice.logprobs is not None
        content = choice.logprobs.content or []
        assert [e.token for e in content] == [e.token for e in streamed[choice.index]]
        for entry in content:
            assert entry.logprob <= entry.top_logprobs[0].logprob + 1e-6
            assert len(entry.top_logprobs) == 2


def test_best_of_returns_the_most_likely(client: openai.OpenAI, model: str) -> None:
    asked: Any = {"model": model, "prompt": TEXT, "max_tokens": 6, "seed": 1}
    made = client.completions.create(**asked, n=4, logprobs=0)

    def mean(choice: Any) -> float:
        values = choice.logprobs.token_logprobs
        return sum(values) / len(values)

    best = client.completions.create(**asked, n=1, best_of=4)
    assert best.choices[0].text == max(made.choices, key=mean).text
    assert best.choices[0].logprobs is None


def test_beam_search_finds_a_more_likely_text_than_greedy(
    client: openai.OpenAI, model: str
) -> None:
    asked: Any = {"model": model, "prompt": TEXT, "max_tokens": 8, "logprobs": 0}
    greedy = client.completions.create(**asked, temperature=0)
    search = {"use_beam_search": True, "best_of": 4}
    answer = client.completions.create(**asked, n=2, extra_body=search)

    def total(choice: Any) -> float:
        return sum(choice.logprobs.token_logprobs)

    first, second = answer.choices
    assert total(first) >= max(total(greedy.choices[0]), total(second))
    chunks = list(client.completions.create(**asked, n=2, extra_body=search, stream=True))
    for choice in answer.choices:
        streamed = [c for chunk in chunks for c in chunk.choices if c.index == choice.index]
        assert "".join(c.text for c in streamed) == choice.text
        assert streamed[-1].finish_reason == choice.finish_reason


def test_json_schema(client: openai.OpenAI, model: str) -> None:
    schema = {
        "type": "object",
        "properties": {"capital": {"enum": ["Paris", "Rome"]}, "old": {"type": "boolean"}},
        "required": ["capital", "old"],
        "additionalProperties": False,
    }
    wanted: Any = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
    answer = client.chat.completions.create(
        model=model, messages=FRANCE, response_format=wanted, temperature=0, max_tokens=60
    )
    value = json.loads(answer.choices[0].message.content or "")
    assert value["capital"] == "Paris"
    assert set(value) == {"capital", "old"}
    wanted["json_schema"]["schema"] = {"type": "nothing"}
    with pytest.raises(openai.BadRequestError, match="grammar"):
        client.chat.completions.create(model=model, messages=FRANCE, response_format=wanted)
