"""The one table of step shapes: every step is padded to one of these, and no other is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxserve.errors import ConfigError

# Each program costs start-up time; these are the ones that a padded step would cost more.
SMALLEST_DECODES = (1, 4)  # then powers of two
SHORT_PROMPT = (64, 4)  # tokens, rows: one short prompt beside few decodes, with little head work
LEAST_DRAWN = 4  # rows of the smallest program of head and sampler
CHUNK_TOKENS = 128  # chunks that don't fill the budget: from here in steps of four


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """Shape of a step: T tokens in S rows. A pure decode has T equal to S."""

    tokens: int
    rows: int

    @property
    def decode(self) -> bool:
        """Whether every row computes one token."""
        return self.tokens == self.rows

    @property
    def drawn(self) -> int:
        """Rows that the head and the sampler take: a few more cost nothing where weights are
        read, and save programs."""
        return max(self.rows, LEAST_DRAWN)


@dataclass(frozen=True, slots=True)
class BucketTable:
    """All buckets, smallest first."""

    decode: tuple[Bucket, ...]
    mixed: tuple[Bucket, ...]

    @classmethod
    def build(cls, max_num_seqs: int, max_num_batched_tokens: int) -> BucketTable:
        """A few row counts for pure decodes, and fewer token counts for the rest.

        Raises:
            ConfigError: the token budget leaves no room beside a token of each sequence.
        """
        if max_num_batched_tokens <= max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({max_num_batched_tokens}) must be more than max_num_seqs "
                f"({max_num_seqs}): a step computes one token of each sequence, and prompts beside"
            )
        rows = [r for r in (*SMALLEST_DECODES, *_powers_from(8)) if r < max_num_seqs]
        short = (SHORT_PROMPT[0], min(SHORT_PROMPT[1], max_num_seqs))
        chunks = [(CHUNK_TOKENS << 2 * i, max_num_seqs) for i in range(8)]
        shapes = {Bucket(t, s) for t, s in (short, *chunks) if s < t < max_num_batched_tokens}
        shapes.add(Bucket(max_num_batched_tokens, max_num_seqs))
        return cls(tuple(Bucket(r, r) for r in (*rows, max_num_seqs)), tuple(sorted(shapes)))

    @property
    def all(self) -> tuple[Bucket, ...]:
        """Every bucket once."""
        return (*self.decode, *self.mixed)

    def pick(self, tokens: int, rows: int, mixed: bool = False) -> Bucket:
        """The smallest bucket that holds the step.

        A pure decode (tokens == rows) may also be one of single-token chunks, unless `mixed`.
        """
        table = self.decode if tokens == rows and not mixed else self.mixed
        return next(b for b in table if b.tokens >= tokens and b.rows >= rows)


def _powers_from(first: int) -> Iterator[int]:
    return (first << i for i in range(16))
