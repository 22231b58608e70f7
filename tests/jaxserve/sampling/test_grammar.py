"""Grammars by llguidance, with a real tokenizer."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from jaxserve.errors import InvalidRequestError
from jaxserve.sampling import grammar as sampling_grammar
from jaxserve.sampling.grammar import GrammarCompiler, GrammarState, StepBudget
from jaxserve.sampling.params import StructuredOutputsParams
from jaxserve.text.tokenizer import Tokenizer, load_tokenizer

AMBIGUOUS = 's: s s s | s s | "a" | "aa"'


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Tokenizer:
    return load_tokenizer(demo_model)


@pytest.fixture(scope="module")
def compiler(tokenizer: Tokenizer) -> GrammarCompiler:
    return GrammarCompiler(tokenizer.grammar_vocabulary(tokenizer.num_ids))


def test_a_very_ambiguous_grammar_is_refused(
    tokenizer: Tokenizer, compiler: GrammarCompiler
) -> None:
    """One mask takes minutes unless it is stopped: the first mask, and the second."""
    rules = [f"e: {' | '.join(f'e{i}' for i in range(20))}"]
    rules += [f'e{i}: e e | "a" e | /[a-z]/ e | /[a-z{i % 9}]/' for i in range(20)]
    text = "\n".join(rules)
    with pytest.raises(InvalidRequestError, match="can't be used"):
        compiler.compile(StructuredOutputsParams(grammar=f"start: e\n{text}"))
    grammar = compiler.compile(StructuredOutputsParams(grammar=f'start: "\\n" e\n{text}'))
    (newline,) = tokenizer.encode("\n")
    with pytest.raises(InvalidRequestError, match="too complex"):
        grammar.start().mask([newline], StepBudget(1))
    assert grammar.size == math.inf  # its next output has a new one


def test_a_grammar_whose_masks_cost_more_with_each_token_is_ended(
    tokenizer: Tokenizer, compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before one mask reaches its limit; a simple grammar for the same text goes on."""
    monkeypatch.setattr(sampling_grammar, "MASKS_S", 0.05)
    monkeypatch.setattr(sampling_grammar, "MASKS_S_PER_TOKEN", 0.0)
    (token,) = tokenizer.encode("aaaa", add_special_tokens=False)

    def follow(state: GrammarState) -> None:
        for n in range(200):
            state.mask([token] * n, StepBudget(1))

    plain = compiler.compile(StructuredOutputsParams(regex="a*")).start()
    ambiguous = compiler.compile(StructuredOutputsParams(grammar=f"start: s\n{AMBIGUOUS}")).start()
    follow(plain)
    with pytest.raises(InvalidRequestError, match="too complex to follow"):
        follow(ambiguous)


def test_when_a_step_has_spent_its_budget_expensive_outputs_end(
    tokenizer: Tokenizer, compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although each is within its own limit. Outputs with cheap masks go on."""
    monkeypatch.setattr(sampling_grammar, "STEP_S", 0.0)
    monkeypatch.setattr(sampling_grammar, "SHARED_MASKS_S", 0.05)
    monkeypatch.setattr(sampling_grammar, "MASKS_S", 100.0)
    (token,) = tokenizer.encode("aaaa", add_special_tokens=False)
    plain = compiler.compile(StructuredOutputsParams(regex="a*"))
    ambiguous = compiler.compile(StructuredOutputsParams(grammar=f"start: s\n{AMBIGUOUS}"))
    costly, cheap = ambiguous.start(), plain.start()

    def follow() -> None:
        for n in range(200):
            budget = StepBudget(2)
            cheap.mask([token] * n, budget)
            costly.mask([token] * n, budget)
            cheap.mask([token] * n, budget)

    with pytest.raises(InvalidRequestError, match="too complex to follow"):
        follow()
