"""Finds out a model's formats of calls and of reasoning by rendering its chat template."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Any

from jaxserve.errors import InvalidRequestError
from jaxserve.server.parsers.reasoning import REASONING_PARSERS, ThinkTagParser
from jaxserve.server.parsers.tool_calls import TOOL_PARSERS
from jaxserve.server.parsers.tool_parser import ToolParser

# As of Tokenizer.apply_chat_template().
Render = Callable[..., str]

# Words that no template has. Ids are of nine letters and digits, since Mistral's take no others.
_NAMES, _KEY, _VALUE, _WORD = ("jaxserve_f", "jaxserve_g"), "jaxserve_key", "jaxserve-value", "word"
_USER = {"role": "user", "content": _WORD}
_TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "x",
            "parameters": {"type": "object", "properties": {_KEY: {"type": "string"}}},
        },
    }
    for name in _NAMES
]
_OFFERED = {tool["function"]["name"]: tool["function"]["parameters"] for tool in _TOOLS}


def find_tool_parser(render: Render) -> type[ToolParser] | None:
    """The parser that finds, in what the template writes of an assistant's calls, those calls; None
    if there is none, or if the template writes no calls."""
    for count in (2, 1):  # some templates take one call a message
        calls = [_call(name, i) for i, name in enumerate(_NAMES[:count])]
        text = _written(render, {"role": "assistant", "content": "", "tool_calls": calls})
        if text is None:
            continue
        expected = [(name, {_KEY: _VALUE}) for name in _NAMES[:count]]
        # Of several the one that leaves the least of the text as content.
        left = {p: left for p in TOOL_PARSERS.values() for left in _left(p, text, expected)}
        if left:
            return min(left, key=lambda parser: left[parser])
    return None


def find_reasoning_parser(mentions: Callable[[str], bool]) -> type[ThinkTagParser] | None:
    """The parser whose close tag the chat template mentions.

    Args:
        mentions: whether the template has a text.
    """
    parsers = REASONING_PARSERS.values()
    return next((p for p in parsers if any(map(mentions, p.closes()))), None)


def takes_system(render: Render) -> bool:
    """Whether the template writes a system message."""
    system = "jaxserve-system"
    text = _render(render, [{"role": "system", "content": system}, _USER])
    return text is not None and system in text


def _call(name: str, index: int) -> dict[str, Any]:
    function = {"name": name, "arguments": {_KEY: _VALUE}}
    return {"id": f"jaxserve{index}", "type": "function", "function": function}


def _written(render: Render, message: dict[str, Any]) -> str | None:
    """What the template writes of an assistant's message, without what begins the message."""
    prompt = _render(render, [_USER], add_generation_prompt=True)
    whole = _render(render, [_USER, message])
    if whole is None or _NAMES[0] not in whole:
        return None
    same = zip(prompt or "", whole, strict=False)
    return whole[sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], same)) :]


def _render(
    render: Render, messages: Sequence[dict[str, Any]], add_generation_prompt: bool = False
) -> str | None:
    try:
        return render(messages, add_generation_prompt=add_generation_prompt, tools=_TOOLS)
    except InvalidRequestError:
        return None


def _left(kind: type[ToolParser], text: str, expected: Sequence[tuple[str, Any]]) -> Iterator[int]:
    """How much of the text is content to a parser; nothing if it doesn't find these calls."""
    parser, content = kind(_OFFERED), 0
    calls: list[tuple[str, str]] = []
    for delta in parser.feed(text) + parser.finish():
        if delta.kind == "call":
            calls.append((delta.text, ""))
        elif delta.kind == "arguments":
            calls[-1] = (calls[-1][0], calls[-1][1] + delta.text)
        else:
            content += len(delta.text)
    if [(name, json.loads(arguments)) for name, arguments in calls] == expected:
        yield content
