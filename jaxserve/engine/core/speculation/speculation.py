"""Speculation: drafts guesses for the sequences that decode, before a step is planned."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from jaxserve.engine.core.protocol import SpeculationStats
from jaxserve.engine.core.speculation.gain import HitRate, StepTimes, depths
from jaxserve.engine.core.speculation.prompt_lookup import PromptLookup
from jaxserve.engine.core.speculation.proposer import Proposer
from jaxserve.engine.core.speculation.suffix_cache import SuffixCache
from scheduler import Scheduler, Sequence, StepPlan

FORGET_EVERY = 256  # steps


class Speculation:
    """Decides whose guesses the next step verifies, and how many of each.

    Args:
        most: guesses of a sequence in a step.
        adapts: as many of them as pay, by HitRate and StepTimes; otherwise `most`.
        most_tokens: tokens of a step that verifies guesses.
        vocab: tokens that may be drawn.
    """

    def __init__(
        self, proposer: Proposer, most: int, adapts: bool, most_tokens: int, vocab: int
    ) -> None:
        self._proposer, self._most, self._adapts = proposer, most, adapts
        self._most_tokens, self._vocab = most_tokens, vocab
        self.times = StepTimes()
        self._rates: dict[Sequence, HitRate] = {}
        self._steps = 0
        self._drafts = self._draft_tokens = 0
        self._accepted = [0] * most  # by position in the draft

    def wants_tokens(self, scheduler: Scheduler) -> bool:
        """Whether sequences that await a token from the step in flight have guesses for what comes
        after it that are worth reading that token first."""
        sequences = self._candidates(scheduler)
        # The first guess is for the token in flight; it must be right, too, for the others to be.
        return any(depth > 1 for depth in self._depths(sequences, self._guesses(sequences)))

    def draft(self, scheduler: Scheduler) -> None:
        """Drafts guesses for the next step. No step is in flight."""
        self._steps += 1
        if self._steps % FORGET_EVERY == 0:
            self._proposer.forget_ended()
            self._rates = {s: r for s, r in self._rates.items() if s.finish_reason is None}
        sequences = list(self._candidates(scheduler))
        guesses = self._guesses(sequences)
        depths = self._depths(sequences, guesses)
        for sequence, guess, depth in zip(sequences, guesses, depths, strict=True):
            if depth:
                scheduler.draft(sequence, guess[:depth])

    def _candidates(self, scheduler: Scheduler) -> SequenceOf[Sequence]:
        """The sequences that decode, if the next step may verify guesses. Beams aren't among them:
        what may follow one of their tokens depends on it."""
        sequences = scheduler.decoding
        count = len(sequences)
        if not scheduler.can_draft or count >= self._most_tokens:
            return ()
        if self._adapts and self.times.row_cost(count) * count >= 1:
            return ()  # not even a sure guess would pay
        return sequences

    def _guesses(self, sequences: SequenceOf[Sequence]) -> list[SequenceOf[int]]:
        guesses = []
        for sequence in sequences:
            rate = self._rates.setdefault(sequence, HitRate())
            guess, known = self._guess(sequence), len(sequence.output_token_ids)
            rate.came(known, sequence.output_token_ids[rate.missing_since() :])
            rate.guessed(known, guess)
            guesses.append(guess)
        return guesses

    def _depths(
        self, sequences: SequenceOf[Sequence], guesses: list[SequenceOf[int]]
    ) -> SequenceOf[int]:
        lengths = [len(guess) for guess in guesses]
        if not self._adapts or not any(lengths):
            return lengths
        shares = [self._rates[sequence].share for sequence in sequences]
        return depths(shares, lengths, self._most_tokens - len(sequences), self.times)

    def verified(self, plan: StepPlan, drafted: SequenceOf[SequenceOf[int]]) -> None:
        """Takes note of the results of a step that verified guesses.

        Args:
            drafted: for each of the plan's drafts, the tokens that its sequence got.
        """
        for draft, tokens in zip(plan.drafts, drafted, strict=True):
            self._drafts += 1
            self._draft_tokens += len(draft.token_ids)
            for place in range(len(tokens) - 1):
                self._accepted[place] += 1

    def stats(self) -> SpeculationStats:
        """The counters."""
        return SpeculationStats(
            self._drafts, self._draft_tokens, sum(self._accepted), tuple(self._accepted)
        )

    def _guess(self, sequence: Sequence) -> SequenceOf[int]:
        """Its guesses, cut before one that can't be drawn."""
        if sequence.request.payload.params.prompt_logprobs is not None:
            return ()
        guess = self._proposer.propose(sequence, self._most)[: self._most]
        if not guess or 0 <= min(guess) <= max(guess) < self._vocab:
            return guess
        return guess[: next(i for i, token in enumerate(guess) if not 0 <= token < self._vocab)]


def make_proposer(name: str) -> Proposer:
    """The proposer of EngineConfig.speculation."""
    proposers: dict[str, type[Proposer]] = {"ngram": PromptLookup, "suffix": SuffixCache}
    return proposers[name]()
