"""The tokens that a row may draw: packed masks on the host, uploaded when they change."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from jaxserve.errors import UnprocessableError
from jaxserve.sampling.grammar import Grammar, GrammarState, StepBudget
from jaxserve.sampling.mask_bits import WORD, mask_words
from jaxserve.sampling.params import SamplingParams


@dataclass(frozen=True, slots=True)
class MaskRules:
    """A request's rules; each of its outputs starts a TokenMask of its own.

    Args:
        allowed: [V] bool, False for tokens that are excluded at every position.
        stop_ids, min_tokens: these ids are excluded until the output has so many tokens.
        phrases: sequences of two or more ids; the last is excluded after the others.
        grammar: what the output must match.
    """

    allowed: np.ndarray
    stop_ids: tuple[int, ...]
    min_tokens: int
    phrases: tuple[tuple[int, ...], ...]
    grammar: Grammar | None

    @classmethod
    def build(
        cls,
        params: SamplingParams,
        stop_ids: frozenset[int],
        bad_words: Sequence[Sequence[int]],
        grammar: Grammar | None,
        vocab: int,
    ) -> MaskRules | None:
        """The rules of a request; None if any token may be drawn at any position.

        Args:
            bad_words: the token ids of params.bad_words.

        Raises:
            UnprocessableError: no token is allowed at the first position.
        """
        early = params.min_tokens > 0 and bool(stop_ids)
        if not (early or bad_words or grammar or params.allowed_token_ids):
            return None
        allowed = np.full(vocab, params.allowed_token_ids is None)
        allowed[list(params.allowed_token_ids or ())] = True
        allowed[[word[0] for word in bad_words if len(word) == 1]] = False
        rules = cls(
            allowed,
            tuple(i for i in stop_ids if i < vocab),
            params.min_tokens if early else 0,
            tuple(tuple(word) for word in bad_words if len(word) > 1),
            grammar,
        )
        rules.allowed_row(0, (), None if grammar is None else grammar.first)
        return rules

    def row(self, position: int, outputs: Sequence[int]) -> np.ndarray:
        """The packed mask [ceil(V / 32)] int32 of output token `position`, without the grammar's
        part."""
        allowed = self.allowed
        ended = [p[-1] for p in self.phrases if p[:-1] == tuple(outputs[-(len(p) - 1) :])]
        early = self.stop_ids if position < self.min_tokens else ()
        if ended or early:
            allowed = allowed.copy()
            allowed[[*ended, *early]] = False
        return pack_mask(allowed)

    def allowed_row(
        self, position: int, outputs: Sequence[int], grammar: np.ndarray | None
    ) -> np.ndarray:
        """As row(), with the grammar's packed mask. Where the grammar allows nothing but the end,
        min_tokens doesn't hold it up.

        Raises:
            UnprocessableError: no token is allowed.
        """
        row = self.row(position, outputs)
        if grammar is not None:
            row &= grammar
            if position < self.min_tokens and not row.any():
                row = self.row(self.min_tokens, outputs) & grammar
        if not row.any():
            raise UnprocessableError(
                f"the request rules out every token at output position {position}: relax its "
                "allowed_token_ids, bad_words, min_tokens or structured output"
            )
        return row

    @property
    def needs_each_token(self) -> bool:
        """Whether the mask depends on which tokens were drawn, not only on how many."""
        return bool(self.phrases) or self.grammar is not None


class TokenMask:
    """The mask of one output as it grows."""

    def __init__(self, rules: MaskRules) -> None:
        self._rules = rules
        self._grammar: GrammarState | None = rules.grammar.start() if rules.grammar else None
        self._position = -1  # of the last mask

    @property
    def needs_each_token(self) -> bool:
        """As MaskRules.needs_each_token."""
        return self._rules.needs_each_token

    def changes(self, position: int) -> bool:
        """Whether the mask of output token `position` may differ from the last one."""
        return self.needs_each_token or self._position < self._rules.min_tokens <= position

    def row(self, position: int, outputs: Sequence[int], budget: StepBudget) -> np.ndarray:
        """The packed mask [ceil(V / 32)] int32 of output token `position`.

        Args:
            outputs: the tokens before it, if the rules need them.
            budget: processor time for the step's masks.

        Raises:
            GrammarError: the outputs violate the grammar.
            InvalidRequestError: the grammar is too complex to follow.
            UnprocessableError: no token is allowed.
        """
        self._position = position
        grammar = None if self._grammar is None else self._grammar.mask(outputs, budget)
        return self._rules.allowed_row(position, outputs, grammar)

    def rows_after(
        self, position: int, outputs: Sequence[int], guesses: Sequence[int], until: float
    ) -> Iterator[np.ndarray]:
        """The packed masks [ceil(V / 32)] int32 of the output tokens after `position`, should the
        guesses, from that position on, be drawn; up to one that can't be computed. The mask itself
        stays where it is.

        Args:
            outputs: the tokens before `position`, for which row() was called last.
            until: by time.monotonic(), when to stop.
        """
        known = list(outputs)
        if self._grammar is None:
            grammars: Iterator[np.ndarray | None] = itertools.repeat(None)
        else:
            grammars = self._grammar.masks_after(guesses, until)
        for nth, (token, grammar) in enumerate(zip(guesses, grammars, strict=False), start=1):
            known.append(token)
            try:
                yield self._rules.allowed_row(position + nth, known, grammar)
            except UnprocessableError:
                return


def pack_mask(allowed: np.ndarray) -> np.ndarray:
    """The packed mask [ceil(V / 32)] int32 of a mask [V] bool."""
    padded = np.zeros(mask_words(len(allowed)) * WORD, np.bool_)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view(np.int32)
