"""The one table of step shapes: every step is padded to one of these, and no other is compiled."""

from __future__ import annotations

from dataclasses import dataclass

from jaxserve.errors import ConfigError

CHUNK_TOKENS = (32, 128)  # smallest mixed steps: a short prompt shouldn't pay for a whole budget
CHUNK_ROWS = 4  # mixed steps with few rows skip most of the head's work


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """Shape of a step: T tokens in S rows. A pure decode has T equal to S."""

    tokens: int
    rows: int

    @property
    def decode(self) -> bool:
        """Whether every row computes one token."""
        return self.tokens == self.rows


@dataclass(frozen=True, slots=True)
class BucketTable:
    """All buckets, smallest first."""

    decode: tuple[Bucket, ...]
    mixed: tuple[Bucket, ...]

    @classmethod
    def build(cls, max_num_seqs: int, max_num_batched_tokens: int) -> BucketTable:
        """Powers of two of rows for decodes; a few token counts at few or all rows for the rest.

        Raises:
            ConfigError: the token budget can't hold one token of each running sequence.
        """
        if max_num_batched_tokens < max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({max_num_batched_tokens}) must be at least max_num_seqs "
                f"({max_num_seqs}): a decode step computes one token of each sequence"
            )
        rows = _powers_up_to(max_num_seqs)
        chunk_rows = sorted({min(CHUNK_ROWS, max_num_seqs), max_num_seqs})
        chunk_tokens = [t for t in CHUNK_TOKENS if t < max_num_batched_tokens]
        shapes = {
            Bucket(t, s)
            for t in (*chunk_tokens, max_num_batched_tokens)
            for s in chunk_rows
            if t > s
        }
        return cls(tuple(Bucket(s, s) for s in rows), tuple(sorted(shapes)))

    @property
    def all(self) -> tuple[Bucket, ...]:
        """Every bucket once."""
        return (*self.decode, *self.mixed)

    def pick(self, tokens: int, rows: int) -> Bucket:
        """The smallest bucket that holds the step.

        A pure decode (tokens == rows) may also be one of single-token chunks.
        """
        table = self.decode if tokens == rows else self.mixed
        return next(b for b in table if b.tokens >= tokens and b.rows >= rows)


def _powers_up_to(limit: int) -> list[int]:
    powers = [1 << i for i in range(limit.bit_length()) if 1 << i < limit]
    return [*powers, limit]
