"""Structured output by llguidance: a grammar compiled once, and its state along one output."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from jaxserve.errors import EngineError, InvalidRequestError
from jaxserve.sampling.mask_bits import mask_words
from jaxserve.sampling.params import StructuredOutputsParams

MAX_SOURCE = 250_000  # characters; a rule of a few of them is a level of the compiler's recursion
STEP_ITEMS = 10_000  # of a mask's parse: an ambiguous grammar would take seconds for more
# Processor time that an output's masks may have taken: so much, and more with each token. They hold
# up every request's step; a usual mask takes 50 us, and the parse of an ambiguous grammar more with
# each character.
MASKS_S, MASKS_S_PER_TOKEN = 0.5, 0.01
# Of all masks of a step. Once it is spent, an output's own limit is its share and some.
STEP_S, SOME_S = 0.5, 0.1
# Bytes that a grammar grows by in a second of its masks' processor time: measured 50 to 85 MiB with
# expressions made for it, and under 1 MiB in all with usual ones.
GROWTH = 2**26
_REFUSED = "doesn't satisfy the grammar"  # of a token; its other errors are limits


class GrammarError(EngineError):
    """The output broke its grammar, which its masks should have kept it from."""


class StepBudget:
    """Processor time for the masks of one step.

    Args:
        rows: outputs that share it.
    """

    def __init__(self, rows: int) -> None:
        self.share_s = STEP_S / max(rows, 1)
        self.left_s = STEP_S


class Grammar:
    """A compiled grammar; start() gives the state of an output that has yet to begin.

    All its outputs share one lexer, whose states become more as they go on, and stay; once there
    are 250,000, no output that needs another can go on.

    new_bytes: what it took when it was new; 0 if nobody has measured it.
    used_s: processor time of its outputs' masks; infinite once one of them has met a limit.

    Args:
        first: packed bits of the tokens that may come first.
    """

    def __init__(self, matcher: LLMatcher, first: np.ndarray) -> None:
        self._matcher, self.first = matcher, first
        self.new_bytes, self.used_s = 0, 0.0

    @property
    def size(self) -> float:
        """Bytes that it may take by now, an estimate."""
        return self.new_bytes + GROWTH * self.used_s

    def start(self) -> GrammarState:
        return GrammarState(self, self._matcher.deep_copy())


class GrammarState:
    """Follows one output, token by token."""

    def __init__(self, grammar: Grammar, matcher: LLMatcher) -> None:
        self._grammar, self._matcher = grammar, matcher
        self._bits = np.zeros_like(grammar.first)
        self._consumed = 0
        self._spent_s = 0.0

    def mask(self, outputs: Sequence[int], budget: StepBudget) -> np.ndarray:
        """Packed bits of the tokens that may follow `outputs`, which go on from the last call's.

        The array is reused by the next call. Its time is taken out of the step's budget; where that
        is spent already, an output that has taken more than its share, token by token, can't go on.

        Raises:
            GrammarError: they break the grammar.
            InvalidRequestError: it is too complex to follow.
        """
        if budget.left_s < 0:
            self._check(SOME_S, budget.share_s)
        began = time.thread_time()
        new = list(outputs[self._consumed :])
        self._consumed += len(new)
        for token in new:
            if not self._matcher.consume_token(token):
                break
        else:
            self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
        took_s = time.thread_time() - began
        self._spent_s += took_s
        self._grammar.used_s += took_s
        budget.left_s -= took_s
        if self._matcher.is_error():
            error = _error(self._matcher)
            if isinstance(error, InvalidRequestError):
                self._grammar.used_s = math.inf
            raise error
        self._check(MASKS_S, MASKS_S_PER_TOKEN)
        return self._bits

    def _check(self, most_s: float, most_s_per_token: float) -> None:
        if self._spent_s > most_s + most_s_per_token * self._consumed:
            raise InvalidRequestError(
                "the grammar is too complex to follow, make it simpler: it took "
                f"{self._spent_s:.1f} s for {self._consumed} tokens",
                "structured_outputs",
            )


class GrammarCompiler:
    """Compiles structured outputs for one vocabulary. Safe to use from several threads.

    Args:
        tokenizer_json: a `tokenizers` tokenizer as JSON.
        vocab: tokens that may be drawn, V.
        eos_token_ids: ids that may end a complete output.
    """

    def __init__(self, tokenizer_json: str, vocab: int, eos_token_ids: Sequence[int]) -> None:
        self._words = mask_words(vocab)
        self._limits = LLParserLimits(step_max_items=STEP_ITEMS, verbose_errors=False)
        self._tokenizer = LLTokenizer(tokenizer_json, n_vocab=vocab, eos_token=list(eos_token_ids))

    def compile(self, params: StructuredOutputsParams) -> Grammar:
        """Raises InvalidRequestError for what llguidance refuses, with its message."""
        source = _source(params)
        if len(source) > MAX_SOURCE:
            raise InvalidRequestError(
                f"the grammar has {len(source)} characters; at most {MAX_SOURCE} can be compiled: "
                "shorten it",
                "structured_outputs",
            )
        matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=self._limits)
        first = np.zeros(self._words, np.int32)
        if not matcher.is_error():
            # The costliest mask is often the first. What it finds is kept for all copies.
            matcher.unsafe_compute_mask_ptr(first.ctypes.data, first.nbytes)
        if matcher.is_error():
            raise InvalidRequestError(
                f"the grammar can't be used: {_first_line(matcher)}", "structured_outputs"
            )
        return Grammar(matcher, first)


def _source(params: StructuredOutputsParams) -> str:
    if params.json_object:
        return LLMatcher.grammar_from_json_schema({"type": "object"})
    if params.regex is not None:
        return LLMatcher.grammar_from_regex(params.regex)
    if params.choice is not None:
        # Alternatives of a grammar cost more each, and there may be but 2,000.
        return LLMatcher.grammar_from_regex("|".join(map(re.escape, params.choice)))
    if params.grammar is not None:
        return LLMatcher.grammar_from_lark(params.grammar)
    assert isinstance(params.json, str)
    return LLMatcher.grammar_from_json_schema(params.json)


def _error(matcher: LLMatcher) -> GrammarError | InvalidRequestError:
    """Why a matcher that has run into an error can't go on."""
    reason = _first_line(matcher)
    if _REFUSED in reason:
        return GrammarError(f"the output can't go on under its grammar: {reason}")
    return InvalidRequestError(
        f"the grammar is too complex to follow, make it simpler: {reason}", "structured_outputs"
    )


def _first_line(matcher: LLMatcher) -> str:
    message = matcher.get_error().strip()
    return message.splitlines()[0] if message else "unknown reason"
