"""Templates of model families through render, call, parse and send back."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.config import ServerConfig
from jaxserve.server.api.shared.conversation import Conversation
from jaxserve.server.context import ServerContext
from jaxserve.server.parsers import REASONING_PARSERS, TOOL_PARSERS, TextParser
from jaxserve.server.wire.tools import Function, ToolUse
from jaxserve.text.tokenizer import Tokenizer, load_tokenizer
from tests.jaxserve.server.parsers.chat_templates import FAMILIES

PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "exact": {"type": "boolean"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "more": {"type": "object"},
        "note": {"type": ["string", "null"]},
    },
}
TOOLS = ToolUse.of(
    {
        "tools[0]": Function(name="weather", description="The weather.", parameters=PARAMETERS),
        "tools[1]": Function(name="get-time", parameters={"type": "object", "properties": {}}),
    },
    *("auto", None),
)
OFFERED = {function.name: function.schema for function in TOOLS.functions}
USER = {"role": "user", "content": "How is it in Rome?"}


@pytest.fixture(scope="module")
def tokenizer(tiny_llama: Path) -> Tokenizer:
    return load_tokenizer(tiny_llama)


def context_of(tokenizer: Tokenizer, family: str) -> Any:
    tokenizer.use_chat_template(FAMILIES[family].template)
    client: Any = SimpleNamespace(tokenizer=tokenizer)
    return ServerContext(client, ServerConfig())


def prompt(context: Any, *messages: Any, tools: ToolUse = TOOLS) -> str:
    return Conversation([USER, *messages], tools, {}, {}).text(context)


def called(name: str, arguments: Any) -> dict[str, Any]:
    return {
        "id": "abcdefgh1",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def calls_in(parser: TextParser, text: str) -> tuple[str, list[tuple[str, Any]]]:
    """The content and the calls, found character by character."""
    content, calls = "", []
    for delta in [d for char in text for d in parser.feed(char)] + parser.finish():
        if delta.kind == "content":
            content += delta.text
        elif delta.kind == "call":
            calls.append([delta.text, ""])
        else:
            calls[-1][1] += delta.text
    return content, [(name, json.loads(arguments)) for name, arguments in calls]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_parsers_are_found(tokenizer: Tokenizer, family: str) -> None:
    context, expected = context_of(tokenizer, family), FAMILIES[family]
    assert context.tool_parser is TOOL_PARSERS[expected.tools or "generic"]
    assert context.explains_tools == (expected.tools is None)
    reasoning = expected.reasoning and REASONING_PARSERS[expected.reasoning]
    assert context.reasoning_parser is reasoning


@pytest.mark.parametrize("family", FAMILIES)
def test_a_call_that_a_template_writes_is_parsed_and_sent_back(
    tokenizer: Tokenizer, family: str
) -> None:
    context = context_of(tokenizer, family)
    asked = prompt(context)
    assert "weather" in asked
    assert "How is it in Rome?" in asked
    arguments = {"city": "Rome", "days": 3, "exact": True, "tags": ["a b", "c"]}
    turn = {"role": "assistant", "content": "", "tool_calls": [called("weather", arguments)]}
    whole = prompt(context, turn)
    assert "Rome" in whole
    # What the model would have written: all that the template has after its prompt.
    begun = next(i for i in range(len(asked), -1, -1) if whole.startswith(asked[:i]))
    end = next(
        (e for e in ("<|im_end|>", "<|eot_id|>", "<|eot|>", "</s>") if e in whole[begun:]), ""
    )
    written = whole[begun:].partition(end)[0] if end else whole[begun:]
    _, calls = calls_in(context.tool_parser(OFFERED), written)
    assert calls == [("weather", arguments)]
    result = {"role": "tool", "tool_call_id": "abcdefgh1", "name": "weather", "content": "warm 24"}
    after = prompt(context, turn, result)
    assert "warm 24" in after
    assert after.index("Rome") < after.index("warm 24")


@pytest.mark.parametrize("family", ["Gemma 2", "SmolLM2"])
def test_tools_are_explained_to_a_model_that_knows_none(tokenizer: Tokenizer, family: str) -> None:
    context = context_of(tokenizer, family)
    text = prompt(context)
    assert '"name": "weather"' in text
    assert "<tool_call>" in text
    assert text.count("<start_of_turn>user" if family == "Gemma 2" else "<|im_start|>system") == 1
    turn = {"role": "assistant", "content": "Hm.", "tool_calls": [called("get-time", {})]}
    results = [{"role": "tool", "tool_call_id": "x", "content": text} for text in ("noon", "one")]
    told = prompt(context, turn, *results, {"role": "user", "content": "And?"})
    assert "Hm.\n<tool_call>\n" in told
    assert "<tool_response>\nnoon\n</tool_response>\n<tool_response>\none" in told
    assert told.index("one") < told.index("And?")
    # Without tools nothing is explained, and two messages of a user stay two.
    plain = context_of(tokenizer, "SmolLM2")
    text = prompt(plain, USER, tools=ToolUse())
    assert "<tool_call>" not in text
    assert text.count("<|im_start|>user") == 2


def test_an_operator_is_believed(tokenizer: Tokenizer) -> None:
    tokenizer.use_chat_template(FAMILIES["SmolLM2"].template)
    client: Any = SimpleNamespace(tokenizer=tokenizer)
    for name, kind in TOOL_PARSERS.items():
        context = ServerContext(client, ServerConfig(tool_call_parser=name))  # type: ignore[arg-type]
        assert context.tool_parser is kind
        assert context.explains_tools == (name == "generic")
    none = ServerContext(client, ServerConfig(tool_call_parser="none"))
    assert none.tool_parser is None


# Texts without the marks that a format itself has no way to write.
SAFE = st.text(st.characters(exclude_characters="<>|\x00", exclude_categories=["Cs"]), max_size=12)
ARGUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "city": SAFE.map(str.strip),
        "days": st.integers(-(10**6), 10**6),
        "exact": st.booleans(),
        "tags": st.lists(SAFE, max_size=3),
        "note": st.none(),
    },
)


@settings(max_examples=150)
@given(
    family=st.sampled_from(sorted(f for f in FAMILIES if FAMILIES[f].tools)), arguments=ARGUMENTS
)
def test_any_arguments_come_back(tiny_llama: Path, family: str, arguments: dict[str, Any]) -> None:
    tokenizer = _shared(tiny_llama)
    context = context_of(tokenizer, family)
    turn = {"role": "assistant", "content": "", "tool_calls": [called("weather", arguments)]}
    asked, whole = prompt(context), prompt(context, turn)
    begun = next(i for i in range(len(asked), -1, -1) if whole.startswith(asked[:i]))
    _, calls = calls_in(context.tool_parser(OFFERED), whole[begun:])
    assert calls == [("weather", arguments)]


_TOKENIZERS: dict[Path, Tokenizer] = {}


def _shared(folder: Path) -> Tokenizer:
    if folder not in _TOKENIZERS:
        _TOKENIZERS[folder] = load_tokenizer(folder)
    return _TOKENIZERS[folder]
