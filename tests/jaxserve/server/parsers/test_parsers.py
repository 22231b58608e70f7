"""What the parsers find in generated text; it doesn't depend on where the text is split."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from typing import get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.config import ServerConfig
from jaxserve.server.parsers import (
    REASONING_PARSERS,
    TOOL_PARSERS,
    NamedCallParser,
    RequiredCallsParser,
    TextParser,
)

NAMES = ("f", "g")  # of the tools that are offered
Parts = tuple[str, str, list[tuple[str, str]]]


def parts(parser: TextParser, texts: Iterable[str]) -> Parts:
    """Reasoning, content and calls that a parser finds in consecutive texts."""
    found = {"reasoning": "", "content": ""}
    calls: list[tuple[str, str]] = []
    deltas = [delta for text in texts for delta in parser.feed(text)] + parser.finish()
    for kind, text in deltas:
        assert text
        if kind == "call":
            calls.append((text, ""))
        elif kind == "arguments":
            name, so_far = calls[-1]
            calls[-1] = name, so_far + text
        else:
            found[kind] += text
    return found["reasoning"], found["content"], calls


CALL = '{"name": "f", "arguments": {"a": "}<x>\\"", "b": [1, {"c": 2}]}}'
ARGUMENTS = '{"a": "}<x>\\"", "b": [1, {"c": 2}]}'
OTHER = '{"arguments": {"x": 1}, "name": "g"}'

UNKNOWN = '{"name": "unknown", "arguments": {}}'
EMPTY = '{"name": "", "arguments": {}}'

TEXTS: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    ("hermes", "Hello <b>", "Hello <b>", []),
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", "", [("f", ARGUMENTS)]),
    (
        "hermes",
        f"Wait.\n\n<tool_call>{CALL}</tool_call>\n<tool_call>\n{OTHER}\n</tool_call>\n",
        "Wait.",
        [("f", ARGUMENTS), ("g", '{"x": 1}')],
    ),
    ("hermes", f"<tool_call>{CALL}<tool_call>{CALL}", "", [("f", ARGUMENTS)] * 2),
    ("hermes", f"<tool_call>{CALL}</tool_call> Done.", " Done.", [("f", ARGUMENTS)]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1', "", [("f", '{"a": 1')]),
    ("hermes", '<tool_call>{"name": "f', '<tool_call>{"name": "f', []),
    (
        "hermes",
        '<tool_call>{"city": "Rome"}</tool_call>',
        '<tool_call>{"city": "Rome"}</tool_call>',
        [],
    ),
    ("hermes", "<tool_call>no", "<tool_call>no", []),
    ("hermes", "text \n<tool", "text \n<tool", []),
    ("hermes", '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>', "", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    ("llama3_json", " Hello {}", " Hello {}", []),
    ("llama3_json", CALL.replace("arguments", "parameters"), "", [("f", ARGUMENTS)]),
    ("llama3_json", f"<|python_tag|>{CALL}; {OTHER}", "", [("f", ARGUMENTS), ("g", '{"x": 1}')]),
    ("llama3_json", '{"city": "Rome"} it is', '{"city": "Rome"} it is', []),
    ("llama3_json", "<|python_tag|> print(1)", "<|python_tag|> print(1)", []),
    ("llama3_json", '{"na', '{"na', []),
    ("llama3_json", "", "", []),
    ("mistral", "Hi [TOOL]", "Hi [TOOL]", []),
    (
        "mistral",
        f"Hm. [TOOL_CALLS] [{CALL}, {OTHER}]",
        "Hm.",
        [("f", ARGUMENTS), ("g", '{"x": 1}')],
    ),
    ("mistral", f"[TOOL_CALLS]f{ARGUMENTS}", "", [("f", ARGUMENTS)]),
    (
        "mistral",
        f"[TOOL_CALLS]f[ARGS]{ARGUMENTS}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{{}}",
        "",
        [("f", ARGUMENTS), ("g", "{}")],
    ),
    ("mistral", "[TOOL_CALLS]what", "[TOOL_CALLS]what", []),
    # Text that is no call is kept to the last character.
    ("hermes", "see \n<tool_call> tag", "see \n<tool_call> tag", []),
    ("hermes", "a <tool_call>  b <tool_call>", "a <tool_call>  b <tool_call>", []),
    ("hermes", 'a\n<tool_call> {"name": "f", "arg', 'a\n<tool_call> {"name": "f", "arg', []),
    ("mistral", "[TOOL_CALLS][1, 2] x", "[TOOL_CALLS][1, 2] x", []),
    ("mistral", "Hm. [TOOL_CALLS] [", "Hm. [TOOL_CALLS] [", []),
    ("mistral", '[TOOL_CALLS] [{"a": 1}, 2]', '[TOOL_CALLS] [{"a": 1}, 2]', []),
    ("llama3_json", '<|python_tag|> {"a": 1} b', '<|python_tag|> {"a": 1} b', []),
    ("mistral", f'[TOOL_CALLS][{CALL}, {{"na', ', {"na', [("f", ARGUMENTS)]),
    # A call is an offered tool's.
    ("hermes", f"<tool_call>{UNKNOWN}</tool_call>", f"<tool_call>{UNKNOWN}</tool_call>", []),
    ("hermes", f"<tool_call>{EMPTY}</tool_call>", f"<tool_call>{EMPTY}</tool_call>", []),
    ("llama3_json", '{"name": "Ada"}', '{"name": "Ada"}', []),
    ("llama3_json", UNKNOWN, UNKNOWN, []),
    ("mistral", "[TOOL_CALLS]x[ARGS]{}", "[TOOL_CALLS]x[ARGS]{}", []),
    # Its arguments are an object's JSON.
    ("hermes", '<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
    ("hermes", '<tool_call>{"name": "f", "arguments": ""}</tool_call>', "", [("f", "{}")]),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        [],
    ),
]


@pytest.mark.parametrize(("name", "text", "content", "calls"), TEXTS)
def test_what_a_tool_parser_finds(
    name: str, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    assert parts(TOOL_PARSERS[name](NAMES), [text]) == ("", content, calls)
    assert parts(TOOL_PARSERS[name](NAMES), text) == ("", content, calls)  # character by character


@pytest.mark.parametrize(
    ("prompt", "name", "text", "reasoning", "content"),
    [
        ("", "qwen3", "<think>\nwhy\n</think>\n\nso", "\nwhy\n", "\n\nso"),
        ("", "qwen3", "\n<think>a <b> </thin", "a <b> </thin", ""),
        ("", "qwen3", "so <think>", "", "so <think>"),
        ("", "qwen3", " <th", "", " <th"),
        ("...<think>\n", "qwen3", "why</think>so", "why", "so"),
        ("<think>\n\n</think>\n\n", "qwen3", "so", "", "so"),
        ("", "deepseek_r1", "why</think>so", "why", "so"),
        ("", "deepseek_r1", "<think>why</think>so</think>", "why", "so</think>"),
        ("", "deepseek_r1", "<", "<", ""),
    ],
)
def test_what_a_reasoning_parser_finds(
    prompt: str, name: str, text: str, reasoning: str, content: str
) -> None:
    make = REASONING_PARSERS[name]
    assert parts(make(prompt), [text]) == (reasoning, content, [])
    assert parts(make(prompt), text) == (reasoning, content, [])


def test_forced_calls() -> None:
    text = '[{"name": "f", "parameters": {"a": 1}}, {"name": "g", "parameters": {}}]'
    for texts in ([text], text):
        assert parts(RequiredCallsParser(NAMES), texts) == (
            "",
            "",
            [("f", '{"a": 1}'), ("g", "{}")],
        )
        assert parts(NamedCallParser("h"), texts) == ("", "", [("h", text)])


PARSERS: dict[str, Callable[[], TextParser]] = {
    **{name: partial(parser, NAMES) for name, parser in TOOL_PARSERS.items()},
    "qwen3": lambda: REASONING_PARSERS["qwen3"](""),
    "deepseek_r1": lambda: REASONING_PARSERS["deepseek_r1"](""),
    "required": lambda: RequiredCallsParser(NAMES),
}
FRAGMENTS = (
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>"),
    *("<think>", "</think>", "[", "]", ", ", ";", "\n", " ", "{", "}", '"', "\\", "f", "Hello"),
    *(CALL, OTHER, '{"name": "f", "arguments": ', '{"a": 1}'),
)


@settings(max_examples=60)
@given(st.sampled_from(sorted(PARSERS)), st.lists(st.sampled_from(FRAGMENTS)), st.data())
def test_the_result_does_not_depend_on_splits(
    name: str, fragments: list[str], data: st.DataObject
) -> None:
    text = "".join(fragments)
    places = st.lists(st.integers(0, len(text)), max_size=8)
    cuts = sorted({0, *data.draw(places), len(text)})
    pieces = [text[a:b] for a, b in pairwise(cuts)]
    whole = parts(PARSERS[name](), [text])
    assert parts(PARSERS[name](), pieces) == whole
    assert parts(PARSERS[name](), text) == whole


@settings(max_examples=200)
@given(st.sampled_from(sorted(PARSERS)), st.lists(st.sampled_from(FRAGMENTS)))
def test_no_character_is_lost(name: str, fragments: list[str]) -> None:
    """Against the text itself: without a call, content and reasoning are all of it but the tags of
    reasoning; with calls, the content is what is left of it in order."""
    text = "".join(fragments)
    reasoning, content, calls = parts(PARSERS[name](), text)
    if not calls:
        tags = ("<think>", "</think>") if name in ("qwen3", "deepseek_r1") else ()
        kept = {text.replace(reasoning, "", 1)}
        for tag in tags:
            kept |= {rest.replace(tag, "", 1) for rest in kept}
        kept |= {rest.lstrip() for rest in kept if tags}  # white space before <think> is dropped
        assert content in kept
        return
    characters = iter(text)
    assert all(character in characters for character in content)  # a subsequence
    assert all(called in NAMES for called, _ in calls)


@settings(max_examples=20)
@given(
    st.sampled_from(["hermes", "llama3_json", "mistral"]),
    st.dictionaries(st.text(max_size=8), st.text(max_size=20) | st.integers() | st.none()),
)
def test_any_arguments_come_back(name: str, arguments: dict[str, object]) -> None:
    call = json.dumps({"name": "f", "arguments": arguments})
    wrapped = {
        "hermes": f"<tool_call>{call}</tool_call>",
        "llama3_json": call,
        "mistral": f"[TOOL_CALLS][{call}]",
    }
    _, content, calls = parts(TOOL_PARSERS[name](NAMES), wrapped[name])
    assert content == ""
    assert [(f, json.loads(text)) for f, text in calls] == [("f", arguments)]


def test_every_parser_has_its_setting() -> None:
    hints = get_type_hints(ServerConfig)
    assert set(get_args(hints["tool_call_parser"])) == {"auto", "none", *TOOL_PARSERS}
    assert set(get_args(hints["reasoning_parser"])) == {"auto", "none", *REASONING_PARSERS}
