"""Structured output by llguidance: compiled grammars, and the state of each output under one."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.gbnf_to_lark import any_to_lark

from jaxserve.errors import EngineError, InvalidRequestError
from jaxserve.sampling.grammar_errors import refusal
from jaxserve.sampling.grammar_vocabulary import GrammarVocabulary
from jaxserve.sampling.json_schema import prepare_schema
from jaxserve.sampling.mask_bits import WORD, mask_words
from jaxserve.sampling.number_bounds import NumberBounds, NumberTokens
from jaxserve.sampling.params import FREE_TEXT, StructuredOutputsParams

MAX_SOURCE = 250_000  # characters; a rule takes a few, and the compiler recurses once for each rule
STEP_ITEMS = 10_000  # parser items a mask; with an ambiguous grammar more would take seconds
# Limit on the processor time of all masks of one output: a constant, and a part for each token.
# Masks delay the step of all requests. A usual one takes 50 us; the parse of an ambiguous grammar
# takes longer with each character.
MASKS_S, MASKS_S_PER_TOKEN = 0.5, 0.01
# Processor time for all masks of one step. Once it is spent, an output is limited to a smaller
# constant and, for each token, its share of the step's time.
STEP_S, SHARED_MASKS_S = 0.5, 0.1
# Bytes by which a grammar grows in a second of its masks' processor time: 50 to 85 MiB were
# measured with expressions chosen for it, and under 1 MiB in all with usual ones.
GROWTH = 2**26
_REFUSED = "doesn't satisfy the grammar"  # llguidance's error for a token; the others are limits


class GrammarError(EngineError):
    """The output violates its grammar, which its masks should have prevented."""


class StepBudget:
    """What is left of the processor time for the masks of one step.

    Args:
        rows: outputs that share it.
    """

    def __init__(self, rows: int) -> None:
        self.share_s = STEP_S / max(rows, 1)
        self.left_s = STEP_S


class Grammar:
    """A compiled grammar; start() returns the state of a new output.

    All outputs of a grammar share one lexer. Its states are never freed, and after 250,000 of them
    an output that needs another fails.

    Attributes:
        new_bytes: memory that it took when it was compiled; 0 if that wasn't measured.
        used_s: processor time of its outputs' masks; infinite after one has reached a limit.

    Args:
        first: packed mask of the first token.
        numbers: bounds the output's numbers; None if it isn't JSON.
    """

    def __init__(
        self, matcher: LLMatcher, first: np.ndarray, numbers: NumberTokens | None = None
    ) -> None:
        self._matcher, self.first, self._numbers = matcher, first, numbers
        self.new_bytes, self.used_s = 0, 0.0

    @property
    def size(self) -> float:
        """Estimate of the bytes that it takes now."""
        return self.new_bytes + GROWTH * self.used_s

    def start(self) -> GrammarState:
        """The state of a new output."""
        numbers = None if self._numbers is None else NumberBounds(self._numbers)
        return GrammarState(self, self._matcher.deep_copy(), numbers)


class GrammarState:
    """The grammar's state after the tokens of one output so far."""

    def __init__(self, grammar: Grammar, matcher: LLMatcher, numbers: NumberBounds | None) -> None:
        self._grammar, self._matcher, self._numbers = grammar, matcher, numbers
        self._bits = np.zeros_like(grammar.first)
        self._consumed = 0
        self._spent_s = 0.0

    def mask(self, outputs: Sequence[int], budget: StepBudget) -> np.ndarray:
        """Packed mask of the tokens that may follow `outputs`.

        `outputs` must begin with those of the last call. The array is reused by the next call. The
        time is subtracted from the step's budget; if nothing is left of that, an output that has
        used more than its share fails.

        Raises:
            GrammarError: the outputs violate the grammar.
            InvalidRequestError: the grammar is too complex to follow.
        """
        if budget.left_s < 0:
            self._check(SHARED_MASKS_S, budget.share_s)
        began = time.thread_time()
        new = list(outputs[self._consumed :])
        self._consumed += len(new)
        for token in new:
            if not self._matcher.consume_token(token):
                break
            if self._numbers is not None:
                self._numbers.consume(token)
        else:
            self._matcher.unsafe_compute_mask_ptr(self._bits.ctypes.data, self._bits.nbytes)
            if self._numbers is not None:
                self._numbers.restrict(self._bits)
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

    def masks_after(self, guesses: Sequence[int], until: float) -> Iterator[np.ndarray]:
        """Packed masks of the tokens that may follow each guess, should all up to it be drawn after
        the outputs of the last mask(); up to a guess that the grammar refuses. They are computed
        with copies of the state. Each array is reused for the next.

        Their time isn't counted against the limits of mask(), so that guesses can't fail an output.

        Args:
            until: by time.monotonic(), when to stop.
        """
        matcher, numbers = self._matcher.deep_copy(), copy(self._numbers)
        bits = self._bits.copy()
        for token in guesses:
            allowed = bits[token // WORD] >> (token % WORD) & 1
            if not allowed or time.monotonic() > until or not matcher.consume_token(token):
                return
            began = time.thread_time()
            if numbers is not None:
                numbers.consume(token)
            matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
            self._grammar.used_s += time.thread_time() - began
            if matcher.is_error():
                return
            if numbers is not None:
                numbers.restrict(bits)
            yield bits

    def _check(self, most_s: float, most_s_per_token: float) -> None:
        """Raises if the masks of this output have taken too long."""
        if self._spent_s > most_s + most_s_per_token * self._consumed:
            raise InvalidRequestError(
                "the grammar is too complex to follow, make it simpler: it took "
                f"{self._spent_s:.1f} s for {self._consumed} tokens",
                "structured_outputs",
            )


class _LLGuidanceTokens:
    """A vocabulary with the names by which llguidance's TokenizerWrapper reads it.

    llguidance encodes text that a grammar forces, and then allows no other tokens. An encoder may
    change or lose characters; the tokens of that text are then found one by one, the longest first.

    longest_first: that other encoder, which leaves out bytes that no token has.
    """

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self.tokens = vocabulary.tokens
        self.special_token_ids = vocabulary.special_ids
        self.eos_token_id, self.bos_token_id = vocabulary.eos_ids[0], None
        self._special = frozenset(vocabulary.special_ids)
        self._encode = vocabulary.encoder.build()
        self.longest_first: Callable[[str], list[int]] = lambda text: []

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode()
        for encode in (self._encode, self.longest_first):
            ids = encode(text)
            written = b"".join(self.tokens[i] for i in ids)
            if written == text.encode() and self._special.isdisjoint(ids):
                return ids
        return []  # no tokens write it


class GrammarCompiler:
    """Compiles structured outputs for one vocabulary. Safe to use from several threads.

    Raises:
        InvalidRequestError: no token ends an output.
    """

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        if not vocabulary.eos_ids:
            raise InvalidRequestError(
                "the model's files name no token that ends an output, so that a grammar couldn't "
                "end: leave it out",
                "structured_outputs",
            )
        self._words = mask_words(vocabulary.num_logits)
        self._numbers = NumberTokens(vocabulary.tokens, vocabulary.num_logits)
        self._limits = LLParserLimits(step_max_items=STEP_ITEMS, verbose_errors=False)
        tokens = _LLGuidanceTokens(vocabulary)
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(tokens),
            n_vocab=vocabulary.num_logits,
            eos_token=vocabulary.eos_ids,
        )
        tokens.longest_first = self._tokenizer.greedy_tokenize

    def compile(self, params: StructuredOutputsParams) -> Grammar:
        """Raises InvalidRequestError for what llguidance refuses, with its message."""
        source = _source(params)
        matcher = LLMatcher(self._tokenizer, source, log_level=0, limits=self._limits)
        first = np.zeros(self._words, np.int32)
        if not matcher.is_error():
            # The first mask is often the most expensive one. All copies reuse its results.
            matcher.unsafe_compute_mask_ptr(first.ctypes.data, first.nbytes)
        if matcher.is_error():
            schema = params.json if isinstance(params.json, str) else None
            raise refusal(matcher.get_error(), params.grammar, schema)
        lark = params.grammar or ""
        is_json = params.is_json or ("%json" in lark and FREE_TEXT not in lark)
        return Grammar(matcher, first, self._numbers if is_json else None)


def _source(params: StructuredOutputsParams) -> str:
    """llguidance's form of what an output must match."""
    if params.json_object:
        return LLMatcher.grammar_from_json_schema(prepare_schema('{"type": "object"}'))
    if params.regex is not None:
        return LLMatcher.grammar_from_regex(_bounded(params.regex))
    if params.choice is not None:
        # As alternatives of a grammar they would cost more, and at most 2,000 are allowed.
        return LLMatcher.grammar_from_regex(_bounded("|".join(map(re.escape, params.choice))))
    if params.grammar is not None:
        return LLMatcher.grammar_from_lark(_lark(_bounded(params.grammar)))
    assert isinstance(params.json, str)
    return LLMatcher.grammar_from_json_schema(prepare_schema(_bounded(params.json)))


def _bounded(source: str) -> str:
    if len(source) > MAX_SOURCE:
        raise InvalidRequestError(
            f"the grammar has {len(source)} characters; at most {MAX_SOURCE} can be compiled: "
            "shorten it",
            "structured_outputs",
        )
    return source


def _lark(grammar: str) -> str:
    """A grammar in Lark's notation; one in llama.cpp's is translated."""
    if "::=" not in grammar:
        return grammar
    try:
        return any_to_lark(grammar)
    except Exception as error:  # of its own class, and any other for what it didn't expect
        raise InvalidRequestError(
            f"the grammar can't be used: as EBNF (root ::= ...) it isn't valid: {error}",
            "structured_outputs",
        ) from None


def _error(matcher: LLMatcher) -> GrammarError | InvalidRequestError:
    """The error of a matcher that has failed."""
    reason = _first_line(matcher)
    if _REFUSED in reason:
        return GrammarError(f"the output violates its grammar: {reason}")
    return InvalidRequestError(
        f"the grammar is too complex to follow, make it simpler: {reason}", "structured_outputs"
    )


def _first_line(matcher: LLMatcher) -> str:
    message = matcher.get_error().strip()
    return message.splitlines()[0] if message else "unknown reason"
