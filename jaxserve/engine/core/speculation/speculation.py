"""Speculation: drafts guesses for the sequences that decode, before a step is planned."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from jaxserve.engine.core.protocol import SpeculationStats
from jaxserve.engine.core.speculation.prompt_lookup import PromptLookup
from jaxserve.engine.core.speculation.proposer import Proposer
from scheduler import Scheduler, Sequence, StepPlan

FORGET_EVERY = 256  # steps


class Speculation:
    """Decides whose guesses the next step verifies.

    Args:
        most: guesses of a sequence in a step.
        most_tokens: tokens of a step that verifies guesses.
        vocab: tokens that may be drawn.
    """

    def __init__(self, proposer: Proposer, most: int, most_tokens: int, vocab: int) -> None:
        self._proposer, self._most = proposer, most
        self._most_tokens, self._vocab = most_tokens, vocab
        self._calls = 0
        self._drafts = self._draft_tokens = 0
        self._accepted = [0] * most  # by position in the draft

    def wants_tokens(self, scheduler: Scheduler) -> bool:
        """Whether a sequence that awaits a token from the step in flight has guesses for what comes
        after it, so that it pays to read that token first."""
        if not scheduler.can_draft or len(scheduler.decoding) >= self._most_tokens:
            return False
        return any(len(self._guess(sequence, 2)) == 2 for sequence in scheduler.decoding)

    def draft(self, scheduler: Scheduler) -> None:
        """Drafts guesses for the next step. No step is in flight."""
        self._calls += 1
        if self._calls % FORGET_EVERY == 0:
            self._proposer.forget_ended()
        sequences = list(scheduler.decoding)
        if not scheduler.can_draft or len(sequences) >= self._most_tokens:
            return
        for sequence in sequences:
            if guesses := self._guess(sequence, self._most):
                scheduler.draft(sequence, guesses)

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

    def _guess(self, sequence: Sequence, most: int) -> SequenceOf[int]:
        """Up to `most` guesses, cut before one that can't be drawn."""
        if sequence.request.payload.params.prompt_logprobs is not None:
            return ()
        guesses = self._proposer.propose(sequence, most)
        for place, token in enumerate(guesses):
            if not 0 <= token < self._vocab:
                return guesses[:place]
        return guesses[:most]


def make_proposer(name: str) -> Proposer:
    """The proposer of EngineConfig.speculation."""
    return {"ngram": PromptLookup}[name]()
