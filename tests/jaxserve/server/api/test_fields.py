"""Every field of a request, by the `openai` package against a real server of a tiny model, whose
output grammars force; streamed and not, each pair equal."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import openai
import pytest
from tokenizers import decoders, pre_tokenizers

from bench.common.server_client import scrape

pytestmark = pytest.mark.slow

HI: Any = [{"role": "user", "content": "hi"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Paris"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK = {"type": "function", "function": {"name": "clock", "strict": True}}


@pytest.fixture(scope="module")
def client(tiny_server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{tiny_server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def chat(client: openai.OpenAI, output: str | None = None, **fields: Any) -> dict[str, Any]:
    """A chat's first choice, requested whole and streamed; both must be equal.

    Args:
        output: text that a grammar forces.
    """
    asked: dict[str, Any] = {"model": "tiny", "messages": HI, "temperature": 0} | fields
    if output is not None:
        asked["extra_body"] = asked.get("extra_body", {}) | {"guided_choice": [output]}
    asked.setdefault("max_tokens", 300)
    whole = client.chat.completions.create(**asked)
    streamed = client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    )
    message: dict[str, Any] = {"content": "", "reasoning": "", "tool_calls": []}
    reasons = []
    for chunk in streamed:
        if not chunk.choices:
            assert chunk.usage is not None
            assert whole.usage is not None
            assert chunk.usage.total_tokens == whole.usage.total_tokens
            continue
        (choice,) = chunk.choices
        reasons.append(choice.finish_reason)
        delta = choice.delta
        message["content"] += delta.content or ""
        message["reasoning"] += (delta.model_extra or {}).get("reasoning", "")
        for call in delta.tool_calls or ():
            assert call.function is not None
            if call.function.name:
                assert call.id
                assert call.index == len(message["tool_calls"])
                message["tool_calls"].append([call.function.name, ""])
            message["tool_calls"][call.index][1] += call.function.arguments or ""
    (choice,) = whole.choices
    assert reasons == [None] * (len(reasons) - 1) + [choice.finish_reason]
    own = choice.message
    assert message == {
        "content": own.content or "",
        "reasoning": (own.model_extra or {}).get("reasoning", ""),
        "tool_calls": [
            [c.function.name, c.function.arguments]  # type: ignore[union-attr]
            for c in own.tool_calls or ()
        ],
    }
    return message | {"finish_reason": choice.finish_reason, "null": own.content is None}


CALLS = (
    'Hm.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
    '<tool_call>{"name": "clock", "arguments": {}}</tool_call>'
)


def test_calls_that_the_model_chooses_to_make(client: openai.OpenAI) -> None:
    tools: Any = [WEATHER, CLOCK]
    answer = chat(client, CALLS, tools=tools)
    assert answer["tool_calls"] == [["weather", '{"city": "Rome"}'], ["clock", "{}"]]
    assert (answer["content"], answer["finish_reason"]) == ("Hm.", "tool_calls")
    one = chat(client, CALLS, tools=tools, parallel_tool_calls=False)
    assert one["tool_calls"] == [["weather", '{"city": "Rome"}']]
    none = chat(client, CALLS, tools=tools, tool_choice="none")
    assert (none["content"], none["tool_calls"]) == (CALLS, [])
    assert none["finish_reason"] == "stop"


def test_calls_that_are_required(client: openai.OpenAI) -> None:
    tools: Any = [WEATHER, CLOCK]
    answer = chat(
        client, tools=tools, tool_choice="required", parallel_tool_calls=False, max_tokens=200
    )
    ((name, arguments),) = answer["tool_calls"]
    assert name in ("weather", "clock")
    assert isinstance(json.loads(arguments), dict)
    assert answer["null"]
    named: Any = {"type": "function", "function": {"name": "weather"}}
    answer = chat(client, tools=tools, tool_choice=named)
    ((name, arguments),) = answer["tool_calls"]
    assert name == "weather"
    assert json.loads(arguments)["city"] in ("Rome", "Paris")
    assert answer["finish_reason"] == "stop"


def test_reasoning_is_separated(client: openai.OpenAI) -> None:
    text = "<think>why</think>\n\nso"
    answer = chat(client, text)
    assert (answer["reasoning"], answer["content"]) == ("why", "\n\nso")
    hidden = chat(client, text, extra_body={"include_reasoning": False})
    assert (hidden["reasoning"], hidden["content"]) == ("", "\n\nso")
    called = chat(client, f"<think>why</think>{CALLS}", tools=[WEATHER, CLOCK])
    assert (called["reasoning"], called["content"]) == ("why", "Hm.")
    assert [name for name, _ in called["tool_calls"]] == ["weather", "clock"]


def prompt_of(client: openai.OpenAI, **fields: Any) -> str:
    """The prompt of a chat as text; tokens are bytes, and 256 is BOS, shown as ^."""
    asked: Any = {"model": "tiny", "messages": HI, "max_tokens": 1} | fields
    extra = asked.pop("extra_body", {}) | {"return_token_ids": True}
    answer = client.chat.completions.create(**asked, extra_body=extra)
    assert answer.model_extra is not None
    return show(answer.model_extra["prompt_token_ids"])


def show(ids: list[int]) -> str:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    return "".join("^" if i == 256 else decoders.ByteLevel().decode([alphabet[i]]) for i in ids)


def test_a_request_that_allows_no_token_is_a_422(client: openai.OpenAI) -> None:
    a = sorted(pre_tokenizers.ByteLevel.alphabet()).index("a")
    banned = {"allowed_token_ids": [a], "bad_words": ["a"]}
    asked: dict[str, Any] = {"model": "tiny", "prompt": "x", "extra_body": banned}
    with pytest.raises(openai.UnprocessableEntityError, match="rules out every token") as refused:
        client.completions.create(**asked)
    assert refused.value.code == "unprocessable"
    with pytest.raises(openai.UnprocessableEntityError):
        client.completions.create(**asked, stream=True)
    # After the first token: "a" may not follow "a", and nothing else is allowed.
    late = asked | {"extra_body": {"allowed_token_ids": [a], "bad_words": ["aa"]}}
    with pytest.raises(openai.APIError, match="rules out every token"):
        list(client.completions.create(**late, stream=True))


def test_a_chat_that_cannot_fit_is_refused_before_it_is_tokenized(client: openai.OpenAI) -> None:
    endless = [{"role": "user", "content": "x" * 100_000}]
    for fields in ({}, {"extra_body": {"add_special_tokens": True}}):
        with pytest.raises(openai.BadRequestError, match="characters") as refused:
            client.chat.completions.create(model="tiny", messages=endless, **fields)  # type: ignore[call-overload]
        assert refused.value.param == "messages"
    with pytest.raises(openai.BadRequestError, match="characters") as refused:
        client.completions.create(
            model="tiny", prompt="x" * 100_000, extra_body={"add_special_tokens": False}
        )
    assert refused.value.param == "prompt"


def test_the_arguments_of_the_chat_template(client: openai.OpenAI) -> None:
    assert prompt_of(client) == "^user: hi\nassistant: "
    assert prompt_of(client, extra_body={"add_generation_prompt": False}) == "^user: hi\n"
    assert prompt_of(client, extra_body={"chat_template_kwargs": {"deep": True}}).endswith(
        "assistant: <think>"
    )
    assert prompt_of(client, reasoning_effort="low").startswith("<effort>low")
    document = {"documents": [{"text": "abc"}]}
    assert prompt_of(client, extra_body=document).startswith("<doc>abc")
    assert prompt_of(client, tools=[WEATHER], tool_choice="auto").startswith("<tool>")
    assert "<tool>" not in prompt_of(client, tools=[WEATHER], tool_choice="none")
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    talk = [
        *HI,
        {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "7"}]},
    ]
    assert prompt_of(client, messages=talk) == (
        '^user: hi\n^assistant: <think>hm</think><tool_call>{"name": "f", "arguments": {}}'
        "</tool_call>\n^tool: 7\nassistant: "
    )
    begun = [*HI, {"role": "assistant", "content": "Well, "}]
    open_end = {"continue_final_message": True}
    assert prompt_of(client, messages=begun, extra_body=open_end) == "^user: hi\n^assistant: Well, "
    short = {"truncate_prompt_tokens": 4}
    assert prompt_of(client, extra_body=short) == "nt: "


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"extra_body": {"chat_template_kwargs": {"messages": []}}}, "chat_template_kwargs"),
        (
            {"extra_body": {"continue_final_message": True, "add_generation_prompt": True}},
            "continue_final_message",
        ),
        ({"extra_body": {"prompt_logprobs": 1}, "stream": True}, "prompt_logprobs"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        (
            {"messages": [{"role": "user", "content": [{"type": "input_audio"}]}]},
            "messages[0].content[0]",
        ),
    ],
)
def test_refusals(client: openai.OpenAI, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        client.chat.completions.create(**{"model": "tiny", "messages": HI} | fields)
    assert raised.value.param == param


def alike(values: Any) -> Any:
    """Equal to what another request of the same text has: words and ids exactly, logprobs but for
    their last bits, which on a model this narrow depend on how many rows a step has."""
    match values:
        case list():
            return [alike(value) for value in values]
        case dict():
            return {token: alike(value) for token, value in values.items()}
        case float():
            return pytest.approx(values, abs=1e-5)
    return values


def test_echo(client: openai.OpenAI) -> None:
    asked: Any = {"model": "tiny", "prompt": ["ab", "xyz"], "temperature": 0, "max_tokens": 3}
    asked |= {"n": 2, "echo": True, "logprobs": 1}
    whole = client.completions.create(**asked)
    plain = client.completions.create(**asked | {"echo": False})
    texts, logprobs = [""] * 4, [[] for _ in range(4)]  # type: ignore[var-annotated]
    for chunk in client.completions.create(**asked, stream=True):
        (choice,) = chunk.choices
        texts[choice.index] += choice.text
        if choice.logprobs is not None:
            logprobs[choice.index].append(choice.logprobs)
    for i, choice in enumerate(whole.choices):
        prompt = "ab" if i < 2 else "xyz"
        assert choice.text == prompt + plain.choices[i].text == texts[i]
        own, unechoed = choice.logprobs, plain.choices[i].logprobs
        assert own is not None
        assert unechoed is not None
        assert len(own.tokens or ()) == len(prompt) + 3
        for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
            streamed = [value for part in logprobs[i] for value in getattr(part, name)]
            assert streamed == alike(getattr(own, name))
        assert (own.token_logprobs or ())[0] is None
        assert (own.top_logprobs or ("",))[0] is None
        assert (own.token_logprobs or [])[-3:] == alike(unechoed.token_logprobs)


def test_echo_without_output_scores_a_text(client: openai.OpenAI) -> None:
    asked: Any = {"model": "tiny", "prompt": "ab", "max_tokens": 0, "echo": True, "logprobs": 0}
    whole = client.completions.create(**asked)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("ab", "length")
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 0
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["a", "b"]
    assert all(value < 0 for value in (logprobs.token_logprobs or ())[1:] if value is not None)
    (chunk,) = client.completions.create(**asked, stream=True)
    assert chunk.choices[0].model_dump() == alike(whole.choices[0].model_dump())


def test_prompt_logprobs(client: openai.OpenAI) -> None:
    extra = {"prompt_logprobs": 2}
    text = client.completions.create(model="tiny", prompt="ab", max_tokens=1, extra_body=extra)
    (choice,) = text.choices
    assert choice.model_extra is not None
    first, second = choice.model_extra["prompt_logprobs"]
    assert first is None
    ids = (
        client.completions.create(
            model="tiny", prompt="ab", max_tokens=1, extra_body={"return_token_ids": True}
        )
        .choices[0]
        .model_extra
    )
    assert ids is not None
    assert len(ids["token_ids"]) == 1
    token = str(ids["prompt_token_ids"][1])
    assert second[token]["decoded_token"] == "b"
    assert second[token]["logprob"] < 0
    assert {entry["rank"] for entry in second.values()} >= {1, 2}
    talk = client.chat.completions.create(model="tiny", messages=HI, max_tokens=1, extra_body=extra)
    assert talk.model_extra is not None
    assert talk.usage is not None
    assert len(talk.model_extra["prompt_logprobs"]) == talk.usage.prompt_tokens


def test_cached_tokens_and_salts(client: openai.OpenAI) -> None:
    def cached(salt: str | None) -> int:
        usage = client.completions.create(
            model="tiny", prompt="z" * 100, max_tokens=1, extra_body={"cache_salt": salt}
        ).usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        return usage.prompt_tokens_details.cached_tokens or 0

    assert cached(None) == 0
    assert cached(None) == 96
    assert cached("mine") == 0
    assert cached("mine") == 96


def test_priority_and_labels_change_no_token(client: openai.OpenAI) -> None:
    plain = chat(client, max_tokens=20)
    assert plain["content"]
    labelled = chat(
        client,
        user="u",
        metadata={"a": "b"},
        max_tokens=20,
        store=False,
        service_tier="auto",
        extra_body={"priority": -3, "prompt_cache_key": "k", "safety_identifier": "s"},
    )
    assert labelled == plain


@pytest.mark.parametrize(("first", "second"), [(5, -3), (0, -1), (2**31 - 1, 2**31 - 2)])
async def test_requests_wait_by_priority(start_tiny: Any, first: int, second: int) -> None:
    """While a request takes the only place two others come; the later one has the lower number."""
    server = start_tiny("--max-num-seqs", "1", "--kv-cache-memory", "4MiB")
    ended: list[int] = []
    limit = aiohttp.ClientTimeout(total=120)  # only against hanging
    async with aiohttp.ClientSession(server.url, timeout=limit) as http:

        async def complete(priority: int) -> None:
            asked = {"prompt": f"p{priority}", "max_tokens": 4, "priority": priority}
            async with http.post("/v1/completions", json=asked | {"ignore_eos": True}) as answer:
                assert answer.status == 200, await answer.text()
            ended.append(priority)

        async def until_waiting(count: int) -> None:
            while (await scrape(http)).total("vllm:num_requests_waiting") < count:
                await asyncio.sleep(0.02)

        long = {"prompt": "x", "max_tokens": 900, "ignore_eos": True, "stream": True}
        async with http.post("/v1/completions", json=long | {"priority": -(2**31) + 1}) as running:
            await running.content.readany()
            waiting = [asyncio.create_task(complete(first))]
            await until_waiting(1)
            waiting.append(asyncio.create_task(complete(second)))
            await until_waiting(2)
            assert not ended
            running.close()
        await asyncio.gather(*waiting)
    assert ended == [second, first]


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_reasoning(client: openai.OpenAI, stream: bool) -> None:
    """Of every token of the output, that of the reasoning and of its tags too."""
    output = "<think>why é</think>so 東"
    asked: dict[str, Any] = {
        "model": "tiny",
        "messages": HI,
        "logprobs": True,
        "top_logprobs": 2,
        "max_tokens": 100,
        "extra_body": {"guided_choice": [output]},
    }
    entries: list[Any] = []
    message = {"content": "", "reasoning": ""}
    if stream:
        for chunk in client.chat.completions.create(**asked, stream=True):
            (choice,) = chunk.choices
            message["content"] += choice.delta.content or ""
            message["reasoning"] += (choice.delta.model_extra or {}).get("reasoning") or ""
            entries += (choice.logprobs and choice.logprobs.content) or []
    else:
        (choice,) = client.chat.completions.create(**asked).choices
        message["content"] = choice.message.content or ""
        message["reasoning"] = (choice.message.model_extra or {})["reasoning"]
        entries += (choice.logprobs and choice.logprobs.content) or []
    assert message == {"content": "so 東", "reasoning": "why é"}
    own = [entry for entry in entries if entry.token != "</s>"]
    assert b"".join(bytes(entry.bytes or ()) for entry in own).decode() == output
    assert len(own) == len(output.encode())  # a token a byte
    assert all(len(entry.top_logprobs) == 2 for entry in entries)


def test_tokens_as_ids_in_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="tiny",
        messages=HI,
        max_tokens=2,
        logprobs=True,
        top_logprobs=1,
        extra_body={"return_tokens_as_token_ids": True, "return_token_ids": True},
    )
    (choice,) = answer.choices
    assert choice.logprobs is not None
    assert choice.model_extra is not None
    tokens = [entry.token for entry in choice.logprobs.content or ()]
    assert tokens == [f"token_id:{i}" for i in choice.model_extra["token_ids"]]


def test_a_stop_string_in_the_output(client: openai.OpenAI) -> None:
    shown = {"include_stop_str_in_output": True}
    answer = chat(client, "one two three", stop=" two", extra_body=shown)
    assert (answer["content"], answer["finish_reason"]) == ("one two", "stop")
    assert chat(client, "one two three", stop=" two")["content"] == "one"


def test_the_packages_own_accumulator(client: openai.OpenAI) -> None:
    strict: Any = {"type": "function", "function": WEATHER["function"] | {"strict": True}}
    named: Any = {"type": "function", "function": {"name": "weather"}}
    with client.chat.completions.stream(
        model="tiny", messages=HI, tools=[strict], tool_choice=named, temperature=0
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    (call,) = final.choices[0].message.tool_calls or ()
    assert call.function.parsed_arguments in ({"city": "Rome"}, {"city": "Paris"})
    assert "tool_calls.function.arguments.done" in kinds
