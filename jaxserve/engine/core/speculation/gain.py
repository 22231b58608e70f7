"""Whether guesses pay: how often they are right, and what a further row costs a step."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

DECAY = 0.9  # of what is known of a sequence, with each token that was guessed
USUAL = (1.0, 2.0)  # guesses that are right, of so many, before anything is known
ROW_COST = 1 / 32  # a further row costs this part of a step of one row, before anything is measured
KEPT = 0.98  # of the sums of StepTimes, with each step
PRIOR_VARIANCE = 4.0  # weight of ROW_COST against the variance of the rows


class HitRate:
    """How often the guesses for one sequence are right.

    Guesses count whether or not a step verifies them: the sequence's tokens come in any case.
    """

    def __init__(self) -> None:
        self._hits, self._tries = USUAL
        self._at, self._guess = 0, ()  # type: int, SequenceOf[int]

    @property
    def share(self) -> float:
        """The probability that a guess is right, should those before it be."""
        return self._hits / self._tries

    def guessed(self, known: int, guess: SequenceOf[int]) -> None:
        """The guess after so many known tokens."""
        self._at, self._guess = known, guess

    def came(self, known: int, tokens: SequenceOf[int]) -> None:
        """So many tokens are known now; `tokens` are those since the last guess, in order."""
        if known <= self._at:
            return
        for token, guess in zip(tokens, self._guess, strict=False):
            self._hits = DECAY * self._hits + (token == guess)
            self._tries = DECAY * self._tries + 1
            if token != guess:
                break
        self._guess = ()

    def missing_since(self) -> int:
        """How many tokens were known at the last guess."""
        return self._at


class StepTimes:
    """The time of a step by its rows, a straight line through the steps measured lately; and the
    time that is lost where a step isn't planned while the one before runs."""

    def __init__(self) -> None:
        self._weight = self._n = self._s = self._nn = self._ns = 0.0
        self._gap_s, self._gaps = 0.0, 0.0

    def add(self, rows: int, seconds: float) -> None:
        """A step without prompts took so long."""
        self._weight = KEPT * self._weight + 1
        self._n = KEPT * self._n + rows
        self._s = KEPT * self._s + seconds
        self._nn = KEPT * self._nn + rows * rows
        self._ns = KEPT * self._ns + rows * seconds

    def add_gap(self, seconds: float) -> None:
        """The device had nothing to do for so long between two steps."""
        self._gaps = KEPT * self._gaps + 1
        self._gap_s = KEPT * self._gap_s + seconds

    def row_cost(self, rows: int) -> float:
        """The share by which one more row makes a step of so many rows longer."""
        if not self._weight:
            return ROW_COST / (1 + ROW_COST * rows)
        mean_n, mean_s = self._n / self._weight, self._s / self._weight
        variance = max(self._nn / self._weight - mean_n**2, 0.0)
        covariance = self._ns / self._weight - mean_n * mean_s
        usual = mean_s * ROW_COST / (1 + ROW_COST * mean_n)
        slope = (covariance + PRIOR_VARIANCE * usual) / (variance + PRIOR_VARIANCE)
        slope = max(slope, 0.0)
        base = max(mean_s - slope * mean_n, 0.0)
        return slope / (base + slope * rows) if slope else 0.0

    def gap_cost(self) -> float:
        """The share by which such a gap makes a step longer."""
        if not (self._gaps and self._s):
            return 0.0
        return (self._gap_s / self._gaps) / (self._s / self._weight)


def depths(
    shares: SequenceOf[float], lengths: SequenceOf[int], room: int, times: StepTimes
) -> list[int]:
    """How many guesses of each sequence the next step should verify, so that it makes the most
    tokens a second; none if the gain isn't worth planning it late.

    A guess is worth its probability, in tokens. It costs a row: the share of the step, times the
    tokens that the step makes anyway.

    Args:
        shares: of each sequence that decodes, HitRate.share.
        lengths: the guesses that there are for it.
        room: rows for guesses.
    """
    count = len(shares)
    chosen, gain, used = [0] * count, 0.0, 0
    cost = times.row_cost(count) * count
    for row in sorted(range(count), key=lambda row: -shares[row]):
        worth = shares[row]
        while chosen[row] < lengths[row] and used < room and worth > cost:
            chosen[row] += 1
            used += 1
            gain += worth - cost
            worth *= shares[row]
    return chosen if gain > times.gap_cost() * count else [0] * count
