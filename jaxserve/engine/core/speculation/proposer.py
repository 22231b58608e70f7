"""Proposer: where guesses come from."""

from __future__ import annotations

from typing import Protocol

from scheduler import Sequence


class Proposer(Protocol):
    """Guesses the next tokens of sequences. What it guesses changes no token, only the speed."""

    def propose(self, sequence: Sequence, most: int) -> list[int]:
        """Up to `most` tokens that may follow the known ones of a sequence; none without an idea.

        It is called often, so it should do no more work than the tokens since the last call need.
        """

    def forget_ended(self) -> None:
        """Frees what is kept for sequences that have ended."""
