"""Text over HTTP: nothing is lost or added between a prompt and its output, whole, streamed and
echoed; names, bytes and offsets of logprobs; special tokens; where outputs end."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece.sentencepiece_model_pb2 import ModelProto

pytestmark = pytest.mark.slow

GOLDEN = Path(__file__).parents[3] / "golden"
USER = {"role": "user", "content": "x"}
THE = 292  # the piece "\u2581the"


def post(server: Any, path: str, **body: Any) -> Any:
    request = urllib.request.Request(
        server.url + path,
        json.dumps(body | {"model": server.model}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        data = response.read().decode()
    if not body.get("stream"):
        return json.loads(data)
    lines = [line.removeprefix("data: ") for line in data.split("\n") if line]
    assert lines.pop() == "[DONE]"
    return list(map(json.loads, lines))


def complete(server: Any, **body: Any) -> dict[str, Any]:
    """A completion's choice, requested whole and streamed; both must be equal."""
    (whole,) = post(server, "/v1/completions", **body)["choices"]
    chunks = post(server, "/v1/completions", stream=True, **body)
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    assert choices[-1]["finish_reason"] == whole["finish_reason"]
    if whole["logprobs"]:
        for name in ("tokens", "text_offset", "token_logprobs"):
            parts = [choice["logprobs"][name] for choice in choices if choice["logprobs"]]
            assert [value for part in parts for value in part] == whole["logprobs"][name], name
    return dict(whole)


@pytest.fixture(scope="module")
def model() -> sentencepiece.SentencePieceProcessor:
    """The library with the vocabulary of spm_server, where <unk> is written as it is."""
    proto = ModelProto.FromString((GOLDEN / "tiny_sentencepiece.model").read_bytes())
    return sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())


@pytest.mark.parametrize("echo", [False, True])
def test_a_word_after_a_prompt_has_its_space(spm_server: Any, echo: bool) -> None:
    choice = complete(
        spm_server,
        prompt="the quick",
        max_tokens=2,
        temperature=0,
        allowed_token_ids=[THE],
        echo=echo,
    )
    assert choice["text"] == ("the quick the the" if echo else " the the")


def test_an_output_without_a_prompt_s_text_begins_without_a_space(spm_server: Any) -> None:
    fields = {"max_tokens": 2, "temperature": 0, "allowed_token_ids": [THE]}
    assert complete(spm_server, prompt=[1], **fields)["text"] == "the the"
    assert complete(spm_server, prompt="", **fields)["text"] == "the the"
    shown = complete(spm_server, prompt=[1], skip_special_tokens=False, echo=True, **fields)
    assert shown["text"] == "<s> the the"


@given(
    st.lists(st.integers(3, 649), min_size=1, max_size=12),
    st.integers(0, 2**31),
    st.sampled_from([[], [231, 162, 182], list(range(3, 259))]),
)
@settings(max_examples=15)
def test_prompt_and_text_are_the_text_of_all_ids(
    spm_server: Any,
    model: sentencepiece.SentencePieceProcessor,
    prompt: list[int],
    seed: int,
    allowed: list[int],
) -> None:
    """Any ids as the prompt, any as the output, bytes of characters among them."""
    fields: dict[str, Any] = {"prompt": prompt, "max_tokens": 8, "temperature": 2, "seed": seed}
    fields |= {"ignore_eos": True, "return_token_ids": True}
    fields |= {"allowed_token_ids": allowed} if allowed else {}
    plain, echoed = complete(spm_server, **fields), complete(spm_server, echo=True, **fields)
    usual = [i for i in prompt + plain["token_ids"] if i > 2]
    whole, before = model.decode(usual), model.decode(prompt)
    assert echoed["text"] == whole
    assert echoed["token_ids"] == plain["token_ids"]
    if whole.startswith(before):
        assert before + plain["text"] == whole
    else:  # the output completes a character of the prompt
        assert before.endswith("\ufffd")
        assert whole.endswith(plain["text"])


def test_names_of_tokens_are_the_text(spm_server: Any) -> None:
    fields: dict[str, Any] = {"prompt": "the quick", "max_tokens": 2, "temperature": 0}
    fields |= {"allowed_token_ids": [THE], "logprobs": 3}
    logprobs = complete(spm_server, **fields)["logprobs"]
    assert logprobs["tokens"] == [" the", " the"]
    assert logprobs["text_offset"] == [0, 4]
    echoed = complete(spm_server, echo=True, **fields)
    assert echoed["text"] == "the quick the the"
    logprobs = echoed["logprobs"]
    assert logprobs["tokens"][:3] == ["<s>", "the", " "]
    assert "".join(logprobs["tokens"][1:]) == echoed["text"]
    check_offsets(echoed["text"], logprobs)
    assert logprobs["text_offset"][:3] == [0, 0, 3]


def check_offsets(text: str, logprobs: Any) -> None:
    """Each token's text stands where its offset says."""
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        if not token.startswith(("bytes:", "<s>", "</s>", "<|im_", "<|endoftext|>")):
            assert text.startswith(token, offset), (token, offset)


def test_bytes_of_a_chat_are_its_text(spm_server: Any) -> None:
    body = {
        "messages": [USER],
        "max_tokens": 40,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 5,
        "guided_choice": ["a the 東京🚀 the"],
    }
    (choice,) = post(spm_server, "/v1/chat/completions", **body)["choices"]
    assert choice["message"]["content"] == "a the 東京🚀 the"
    entries = choice["logprobs"]["content"]
    own = [entry for entry in entries if entry["token"] != "</s>"]
    joined = b"".join(bytes(entry["bytes"]) for entry in own)
    assert joined.decode() == choice["message"]["content"]
    assert "bytes:\\xe6" in [entry["token"] for entry in own]
    for entry in entries:
        names = [top["token"] for top in entry["top_logprobs"]]
        assert len(set(names)) == len(names) == 5
        assert all(bytes(top["bytes"]) for top in entry["top_logprobs"])


def test_grammars_know_a_vocabulary_that_adds_a_space(spm_server: Any) -> None:
    fields: dict[str, Any] = {"prompt": "x", "max_tokens": 60, "temperature": 0}
    choice = complete(spm_server, guided_choice=["a the the"], **fields)
    assert (choice["text"], choice["finish_reason"]) == ("a the the", "stop")
    choice = complete(spm_server, guided_regex=" the (東|the){2}", **fields)
    assert choice["text"].startswith(" the ")
    schema = {"type": "object", "properties": {"a": {"const": " the 東"}}, "required": ["a"]}
    schema["additionalProperties"] = False
    choice = complete(spm_server, guided_json=schema, **fields | {"max_tokens": 200})
    if choice["finish_reason"] == "stop":
        assert json.loads(choice["text"]) == {"a": " the 東"}


def test_a_forced_call_in_a_vocabulary_that_adds_a_space(spm_server: Any) -> None:
    parameters = {
        "type": "object",
        "properties": {"city": {"enum": ["the town"]}},
        "required": ["city"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "the_f", "parameters": parameters}}
    body = {
        "messages": [USER],
        "tools": [tool],
        "tool_choice": {"type": "function", "function": {"name": "the_f"}},
        "max_tokens": 200,
        "temperature": 0,
        "logit_bias": {607: -100},
    }
    (choice,) = post(spm_server, "/v1/chat/completions", **body)["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"city": "the town"}


def test_halves_of_characters_have_names_of_their_own(server: Any) -> None:
    """The likeliest tokens after these are parts of characters, which all read as U+FFFD."""
    fields: dict[str, Any] = {"prompt": [9207, 552, 42, 40303], "max_tokens": 1, "temperature": 0}
    choice = complete(server, logprobs=20, **fields)
    (top,) = choice["logprobs"]["top_logprobs"]
    assert len(top) == 20
    assert sum(name.startswith("bytes:\\x") for name in top) >= 10
    assert choice["logprobs"]["tokens"][0] in top
    entries = post(server, "/v1/completions", prompt_logprobs=20, **fields)["choices"][0]
    for entry in entries["prompt_logprobs"][1:]:
        names = [token["decoded_token"] for token in entry.values()]
        assert len(set(names)) == len(names)


def test_offsets_of_characters_in_several_tokens(server: Any) -> None:
    text = "é東京🚀 the 🦜"
    choice = complete(
        server, prompt="x", max_tokens=60, temperature=0, guided_choice=[text], logprobs=0
    )
    assert choice["text"] == text
    logprobs = choice["logprobs"]
    check_offsets(text, logprobs)
    at = b""  # the text's bytes before a token; all tokens of a character stand where it begins
    for token, offset in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert offset == len(at.decode(errors="ignore"))
        if token.startswith("bytes:"):
            at += bytes.fromhex(token.removeprefix("bytes:").replace("\\x", ""))
        elif not token.startswith("<|"):  # the end
            at += token.encode()
    assert at.decode() == text


@pytest.mark.parametrize("skip", [True, False])
def test_offsets_count_special_tokens_if_the_text_has_them(server: Any, skip: bool) -> None:
    """The model draws <|im_start|> (1) twice; it is shown, or not."""
    fields: dict[str, Any] = {"max_tokens": 2, "temperature": 0, "logit_bias": {1: 100}}
    fields |= {"logprobs": 0, "skip_special_tokens": skip}
    mark, shown = "<|im_start|>", 0 if skip else 12
    choice = complete(server, prompt="Hi", **fields)
    assert choice["text"] == ("" if skip else mark * 2)
    assert choice["logprobs"]["tokens"] == [mark, mark]
    assert choice["logprobs"]["text_offset"] == [0, shown]
    # An echo has what was written; for a list of ids, what the text of all ids has.
    choice = complete(server, prompt=f"Hi{mark}x", echo=True, **fields)
    assert choice["text"] == f"Hi{mark}x" + ("" if skip else mark * 2)
    assert choice["logprobs"]["tokens"] == ["Hi", mark, "x", mark, mark]
    assert choice["logprobs"]["text_offset"] == [0, 2, 14, 15, 15 + shown]
    ids = post(server, "/tokenize", prompt=f"Hi{mark}x")["tokens"]
    choice = complete(server, prompt=ids, echo=True, **fields)
    assert choice["text"] == ("Hix" if skip else f"Hi{mark}x{mark}{mark}")
    assert choice["logprobs"]["text_offset"] == [0, 2, 2 + shown, 3 + shown, 3 + 2 * shown]


def test_special_tokens_in_a_chat_are_left_out_or_shown(server: Any) -> None:
    body: dict[str, Any] = {"messages": [USER], "max_tokens": 2, "temperature": 0}
    body |= {"logit_bias": {1: 100}, "logprobs": True}
    for skip, text in ((True, ""), (False, "<|im_start|><|im_start|>")):
        (choice,) = post(server, "/v1/chat/completions", skip_special_tokens=skip, **body)[
            "choices"
        ]
        assert choice["message"]["content"] == text
        names = [entry["token"] for entry in choice["logprobs"]["content"]]
        assert names == ["<|im_start|>"] * 2


def test_a_stop_string_can_be_a_special_token(server: Any) -> None:
    fields: dict[str, Any] = {"prompt": "Hi", "max_tokens": 8, "return_token_ids": True}
    for stop in ("<|im_start|>", "<|im_start|><|im_start|>"):
        choice = complete(server, logit_bias={1: 100}, stop=[stop, "never"], **fields)
        assert choice["token_ids"] == [1] * stop.count("<|im_start|>")
        assert (choice["text"], choice["finish_reason"]) == ("", "stop")
        assert choice["stop_reason"] == stop


def test_a_stop_string_before_min_tokens_is_passed_over(server: Any) -> None:
    choice = complete(
        server,
        prompt="x",
        max_tokens=10,
        min_tokens=4,
        stop=[" the"],
        logit_bias={260: 100},
        ignore_eos=True,
        return_token_ids=True,
    )
    assert choice["token_ids"] == [260] * 4
    assert (choice["text"], choice["finish_reason"]) == (" the the the", "stop")
