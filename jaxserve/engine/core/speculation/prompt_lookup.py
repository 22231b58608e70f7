"""Prompt lookup: the last tokens stood in prompt or output before, so what followed them then may
follow again (Saxena, Prompt Lookup Decoding, 2023)."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from itertools import islice

from scheduler import Sequence

SIZES = (4, 2)  # tokens of the n-grams that are looked up, the longest first


class NgramIndex:
    """A text that grows, and where each of its n-grams ended last.

    A token costs a few dictionary operations, whatever the length of the text.

    Args:
        tokens: the text so far.
        prediction: what may follow it. It is searched as if it stood in the text, though the text
            goes on after `tokens`.
    """

    def __init__(self, tokens: SequenceOf[int], prediction: SequenceOf[int] = ()) -> None:
        self._tokens = [*tokens, *prediction]
        self._added = len(prediction)
        self._tail = tuple(tokens[-max(SIZES) :])  # the last tokens of the text itself
        # For each size: the end of each n-gram's last occurrence but the one that ends the text.
        self._ends: list[dict[tuple[int, ...], int]] = []
        for size in SIZES:
            shifted = (islice(self._tokens, i, None) for i in range(size))
            ends = range(size, len(self._tokens))  # zip() stops before the one that ends the text
            self._ends.append(dict(zip(zip(*shifted, strict=False), ends, strict=False)))

    def __len__(self) -> int:
        return len(self._tokens) - self._added

    def extend(self, tokens: Iterable[int]) -> None:
        """Appends tokens."""
        text = self._tokens
        for token in tokens:
            end = len(text)
            for size, ends in zip(SIZES, self._ends, strict=True):
                if len(self._tail) >= size:
                    ends[self._tail[-size:]] = end
            text.append(token)
            self._tail = (*self._tail, token)[-max(SIZES) :]

    def continuation(self, most: int) -> list[int]:
        """Up to `most` tokens that followed where the last n-gram stood before, the longest size
        that is found; none if no size is. Where that runs into the end of the text, the guess
        repeats what lies between."""
        text = self._tokens
        for size, ends in zip(SIZES, self._ends, strict=True):
            at = ends.get(self._tail[-size:])
            if at is not None:
                period = text[at : at + most]
                return (period * (-(-most // len(period))))[:most]
        return []


class PromptLookup:
    """Proposes from each sequence's own text, and from the prediction that its request has."""

    def __init__(self) -> None:
        self._indices: dict[Sequence, NgramIndex] = {}

    def propose(self, sequence: Sequence, most: int) -> list[int]:
        """See Proposer."""
        index = self._indices.get(sequence)
        if index is None:
            request = sequence.request
            index = NgramIndex(request.prompt_token_ids, request.payload.prediction)
            self._indices[sequence] = index
        index.extend(sequence.output_token_ids[len(index) - sequence.num_prompt :])
        return index.continuation(most)

    def forget_ended(self) -> None:
        """See Proposer."""
        self._indices = {s: i for s, i in self._indices.items() if s.finish_reason is None}
