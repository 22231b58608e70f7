"""Suffix cache: what followed the last tokens in recent outputs of this server may follow again
(SuffixDecoding, Oliaro et al., 2024)."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass

from jaxserve.engine.core.speculation.prompt_lookup import PromptLookup
from scheduler import Sequence

SIZE = 5  # tokens of the n-grams that are looked up
KEPT_TOKENS = 65_536  # of recent outputs, each with its place in the index: about 16 MB

# An output, and how many of its tokens came before.
Place = tuple[SequenceOf[int], int]
Salt = tuple[bytes | None, str | None]  # adapter, cache salt


class RecentOutputs:
    """Where each n-gram of recent outputs was last followed by something, apart for each salt.

    The outputs are kept in two generations, of which the older is dropped as a whole when the newer
    one is full, so that between half and all of KEPT_TOKENS are found.
    """

    def __init__(self, kept_tokens: int = KEPT_TOKENS) -> None:
        self._most = kept_tokens // 2
        self._new: dict[Salt, dict[tuple[int, ...], Place]] = {}
        self._old: dict[Salt, dict[tuple[int, ...], Place]] = {}
        self._count = 0  # tokens of the new generation

    def add(self, salt: Salt, before: tuple[int, ...], place: Place) -> None:
        """A token came at this place, after these SIZE tokens."""
        if self._count >= self._most:
            self._old, self._new, self._count = self._new, {}, 0
        self._new.setdefault(salt, {})[before] = place
        self._count += 1

    def find(self, salt: Salt, before: tuple[int, ...]) -> Place | None:
        """The last place of a token after these SIZE tokens."""
        for generation in (self._new, self._old):
            place = generation.get(salt, {}).get(before)
            if place is not None:
                return place
        return None


@dataclass(slots=True)
class _Progress:
    """Args: tail: the last tokens of prompt and output, SIZE of them; count: of output tokens."""

    tail: tuple[int, ...]
    count: int = 0


class SuffixCache:
    """Proposes from recent outputs under the same cache salt, and where those have nothing, from
    the sequence's own text."""

    def __init__(self) -> None:
        self._recent, self._lookup = RecentOutputs(), PromptLookup()
        self._progress: dict[Sequence, _Progress] = {}

    def propose(self, sequence: Sequence, most: int) -> list[int]:
        """See Proposer."""
        request, output = sequence.request, sequence.output_token_ids
        salt = request.adapter, request.cache_salt
        progress = self._progress.get(sequence)
        if progress is None:
            progress = _Progress(tuple(request.prompt_token_ids[-SIZE:]))
            self._progress[sequence] = progress
        tail = progress.tail
        for count in range(progress.count, len(output)):
            if len(tail) == SIZE:
                self._recent.add(salt, tail, (output, count))
            tail = (*tail, output[count])[-SIZE:]
        progress.tail, progress.count = tail, len(output)
        place = self._recent.find(salt, tail)
        own = self._lookup.propose(sequence, most)
        return own if place is None else list(place[0][place[1] : place[1] + most])

    def forget_ended(self) -> None:
        """See Proposer. What the sequences have put out stays."""
        self._lookup.forget_ended()
        self._progress = {s: p for s, p in self._progress.items() if s.finish_reason is None}
