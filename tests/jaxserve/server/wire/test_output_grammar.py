"""Which outputs the grammars of calls, answers and reasoning let through, on the bytes of the tiny
model's vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxserve.sampling.grammar import GrammarCompiler, StepBudget
from jaxserve.sampling.params import StructuredOutputsParams
from jaxserve.server.parsers import TOOL_PARSERS
from jaxserve.server.wire.call_grammar import Reasoning
from jaxserve.server.wire.tools import Function, FunctionName, ToolUse, answer_after
from jaxserve.text.tokenizer import Tokenizer, load_tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "required": ["a"],
}
FUNCTIONS = {"t[0]": Function(name="f", parameters=SCHEMA), "t[1]": Function(name="g")}
AUTO = ToolUse.of(FUNCTIONS, "auto", None)
ONE = ToolUse.of(FUNCTIONS, "auto", False)
CALL_F = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
CALL_G = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
TAGS = Reasoning("<think>", "</think>")
OPEN = Reasoning("", "</think>")
ANSWER = StructuredOutputsParams(json=SCHEMA)


@pytest.fixture(scope="module")
def tokenizer(tiny_llama: Path) -> Tokenizer:
    return load_tokenizer(tiny_llama)


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer.grammar_vocabulary(272))


def verdict(
    compiler: GrammarCompiler, tokenizer: Tokenizer, params: StructuredOutputsParams, text: str
) -> str:
    """ "whole": the output may end after the text; "begun": it must go on; "refused"."""
    grammar = compiler.compile(params)
    state, mask, outputs = grammar.start(), grammar.first, list[int]()

    def allowed(token: int) -> bool:
        bits = np.asarray(mask).view(np.uint32)
        return bool(bits[token // 32] >> np.uint32(token % 32) & np.uint32(1))

    for token in tokenizer.encode(text, add_special_tokens=False):
        if not allowed(token):
            return "refused"
        outputs.append(token)
        mask = state.mask(outputs, StepBudget(1))
    return "whole" if allowed(tokenizer.eos_token_ids[0]) else "begun"


def hermes(
    tools: ToolUse = AUTO,
    reasoning: Reasoning | None = None,
    answer: StructuredOutputsParams | None = None,
) -> StructuredOutputsParams:
    kind = TOOL_PARSERS["hermes"]
    assert kind.layout is not None
    return tools.optional_calls(kind.layout, kind.markers[0], {}, reasoning, answer)


FREE: list[tuple[dict[str, Any], str, str]] = [
    ({}, "any text, 12345678901234567890123456789", "whole"),
    ({}, "Well <tool", "whole"),
    ({}, CALL_F, "whole"),
    ({}, f"Let me see.\n{CALL_G}", "whole"),
    ({}, f"{CALL_F}\n{CALL_G}", "whole"),
    ({"tools": ONE}, f"{CALL_F}\n{CALL_G}", "refused"),
    ({}, CALL_F[:-3], "begun"),
    ({}, CALL_F.replace("1", '"x"'), "refused"),
    ({}, CALL_F.replace('"f"', '"h"'), "refused"),
    ({}, CALL_F.replace('"a": 1', '"b": 1'), "refused"),
    ({}, "<tool_call>\nnothing", "refused"),
    ({"reasoning": TAGS}, "plain", "whole"),
    ({"reasoning": TAGS}, "<think>why <tool_call>not</think>\n\nso", "whole"),
    ({"reasoning": TAGS}, f"<think>why</think>\n{CALL_F}", "whole"),
    ({"reasoning": TAGS}, f"<think>why</think>{CALL_F.replace('1', 'x')}", "refused"),
    ({"reasoning": OPEN}, "why", "begun"),
    ({"reasoning": OPEN}, f"why <tool_call>not</think>{CALL_G}", "whole"),
    ({"answer": ANSWER}, '{"a": 1}', "whole"),
    ({"answer": ANSWER}, CALL_F, "whole"),
    ({"answer": ANSWER}, "text", "refused"),
    ({"answer": ANSWER, "reasoning": TAGS}, '<think>x</think>\n\n{"a": 1}', "whole"),
    ({"answer": ANSWER, "reasoning": OPEN}, f"x</think>\n{CALL_G}", "whole"),
]


@pytest.mark.parametrize(("asked", "text", "expected"), FREE)
def test_calls_that_may_come(
    compiler: GrammarCompiler, tokenizer: Tokenizer, asked: Any, text: str, expected: str
) -> None:
    assert verdict(compiler, tokenizer, hermes(**asked), text) == expected


@pytest.mark.parametrize(
    ("reasoning", "text", "expected"),
    [
        (TAGS, '{"a": 1}', "whole"),
        (TAGS, "<think>12", "begun"),
        (TAGS, '<think>12</think>\n\n{"a": 12}', "whole"),
        (TAGS, "12", "refused"),
        (OPEN, '{"a": 1}', "begun"),
        (OPEN, 'hm</think>{"a": 1}', "whole"),
        (OPEN, "hm</think>so", "refused"),
    ],
)
def test_an_answer_after_reasoning(
    compiler: GrammarCompiler,
    tokenizer: Tokenizer,
    reasoning: Reasoning,
    text: str,
    expected: str,
) -> None:
    assert verdict(compiler, tokenizer, answer_after(reasoning, {}, ANSWER), text) == expected


def test_required_calls_after_reasoning(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    required = ToolUse.of(FUNCTIONS, "required", False).required_after(OPEN, {})
    text = 'hm</think>[{"name": "f", "parameters": {"a": 1}}]'
    assert verdict(compiler, tokenizer, required, text) == "whole"
    assert verdict(compiler, tokenizer, required, "hm</think>so") == "refused"
    named = ToolUse.of(FUNCTIONS, FunctionName(name="f"), None).required_after(OPEN, {})
    assert verdict(compiler, tokenizer, named, 'hm</think>{"a": 1}') == "whole"


def test_a_special_token_ends_text(compiler: GrammarCompiler, tokenizer: Tokenizer) -> None:
    mark = tokenizer.vocabulary.piece_id("<|mark|>")
    assert mark is not None
    special = {"<|mark|>": mark}
    reasoning = Reasoning("", "<|mark|>")
    params = answer_after(reasoning, special, ANSWER)
    assert verdict(compiler, tokenizer, params, 'hm<|mark|>{"a": 1}') == "whole"
    assert verdict(compiler, tokenizer, params, 'hm{"a": 1}') == "begun"


@pytest.mark.parametrize("name", [n for n, kind in TOOL_PARSERS.items() if kind.layout])
def test_what_a_layout_makes_a_model_write_is_parsed(
    compiler: GrammarCompiler, tokenizer: Tokenizer, name: str
) -> None:
    """The output that the grammar forces, with the call's name and number chosen."""
    kind = TOOL_PARSERS[name]
    assert kind.layout is not None
    tools = ToolUse.of({"t[0]": Function(name="f")}, "auto", False)
    params = tools.optional_calls(kind.layout, kind.markers[0], {}, None, None)
    before = kind.layout.before_arguments("f").replace("{n}", "0")
    text = f"{kind.layout.first}{before}{{}}{kind.layout.after}{kind.layout.last}"
    assert verdict(compiler, tokenizer, params, text) == "whole"
    deltas = (parser := kind({"f": {}})).feed(text) + parser.finish()
    assert [(d.kind, d.text) for d in deltas] == [("call", "f"), ("arguments", "{}")]
