"""Tools and tool_choice."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.params import StructuredOutputsParams
from jaxserve.server.wire.chat.request import CHAT_UNSUPPORTED, ChatCompletionRequest
from jaxserve.server.wire.validation import parse

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def parse_chat(**fields: Any) -> ChatCompletionRequest:
    return parse(CHAT | fields, ChatCompletionRequest, CHAT_UNSUPPORTED)


F = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
G = {"type": "function", "function": {"name": "g", "description": "d", "strict": True}}


def test_tool_choices() -> None:
    def mode(**fields: Any) -> tuple[str, str | None]:
        use = parse_chat(**fields).tool_use()
        return use.mode, use.named

    assert mode() == mode(tools=[]) == mode(tools=[F], tool_choice="none") == ("none", None)
    assert mode(tools=[F, G]) == mode(tools=[F], tool_choice="auto") == ("auto", None)
    assert mode(tools=[F, G], tool_choice="required") == ("required", None)
    named = {"type": "function", "function": {"name": "g"}}
    assert mode(tools=[F, G], tool_choice=named) == ("required", "g")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        (
            {"tools": [F], "tool_choice": {"type": "function", "function": {"name": "h"}}},
            "tool_choice",
        ),
        ({"tools": [F, F]}, "tools"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
        ({"tools": [F], "tool_choice": "required", "guided_regex": "a"}, "tool_choice"),
    ],
)
def test_contradictory_tools_are_refused(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parse_chat(**fields).to_sampling_params()
    assert raised.value.param == param


def test_forced_calls_constrain_the_output() -> None:
    def structured(**fields: Any) -> StructuredOutputsParams | None:
        return parse_chat(tools=[F, G], **fields).to_sampling_params().structured_outputs

    assert structured() is None
    named = {"type": "function", "function": {"name": "f"}}
    arguments = structured(tool_choice=named)
    assert arguments is not None
    assert json.loads(str(arguments.json))["type"] == "object"
    required = structured(tool_choice="required")
    assert required is not None
    assert required.grammar is not None
    assert LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(required.grammar)) == ""
