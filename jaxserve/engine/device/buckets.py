"""BucketTable: the shapes that steps are padded to. Only these are compiled."""

from __future__ import annotations

from dataclasses import dataclass

from jaxserve.errors import ConfigError

# Fewest tokens of a step, and fewest rows of head and sampler, except in a decode of one row.
MIN_ROWS = 16
# Of such a decode. The sampler's loop over two rows is compiled as one over more rows is; XLA makes
# other code of a loop over one, and so perhaps other bits.
SINGLE_DRAWN = 2
SHORT_PROMPT = (64, 4)  # tokens, rows: a short prompt beside a few decodes, so few rows in the head
CHUNK_TOKENS = 128  # smallest bucket of chunks that don't fill the budget; the next double it


def guess_masks(max_num_seqs: int, speculates: bool) -> int:
    """Rows of the mask table for tokens after guesses: one for each row of the largest step that
    verifies any."""
    return max(max_num_seqs, MIN_ROWS) if speculates else 0


@dataclass(frozen=True, slots=True, order=True)
class Bucket:
    """Shape of a step: T tokens in S rows. A pure decode has T equal to S.

    Args:
        guesses: most guesses of a sequence that it verifies. Each token is then a row, so that all
            of them are decodes to the kernels.
    """

    tokens: int
    rows: int
    guesses: int = 0

    @property
    def decode(self) -> bool:
        """Whether every row computes one token."""
        return self.tokens == self.rows

    @property
    def drawn(self) -> int:
        """Rows that head and sampler compute."""
        return max(self.rows, MIN_ROWS) if self.tokens > 1 else SINGLE_DRAWN

    @property
    def plain(self) -> Bucket:
        """The bucket whose layers this one shares."""
        return Bucket(self.tokens, self.rows)


@dataclass(frozen=True, slots=True)
class BucketTable:
    """All buckets, smallest first."""

    decode: tuple[Bucket, ...]
    mixed: tuple[Bucket, ...]
    verify: tuple[Bucket, ...] = ()

    @classmethod
    def build(cls, max_num_seqs: int, max_num_batched_tokens: int, guesses: int = 0) -> BucketTable:
        """A few row counts for pure decodes, and fewer token counts for the rest.

        Args:
            guesses: most guesses of a sequence in one step; 0: no step verifies any.

        Raises:
            ConfigError: the token budget has no room for prompts beside one token of each sequence.
        """
        if max_num_batched_tokens <= max_num_seqs:
            raise ConfigError(
                f"max_num_batched_tokens ({max_num_batched_tokens}) must be more than max_num_seqs "
                f"({max_num_seqs}): a step computes one token of each sequence, and prompts beside"
            )
        most = max(max_num_seqs, MIN_ROWS)
        rows = [1, *(MIN_ROWS << i for i in range(16) if MIN_ROWS << i < most)]
        if max_num_seqs > 1:
            rows.append(most)
        short = (SHORT_PROMPT[0], min(SHORT_PROMPT[1], max_num_seqs))
        chunks = [(CHUNK_TOKENS << i, max_num_seqs) for i in range(16)]
        shapes = {Bucket(t, s) for t, s in (short, *chunks) if s < t < max_num_batched_tokens}
        shapes.add(Bucket(max(max_num_batched_tokens, MIN_ROWS), max_num_seqs))
        verify = [Bucket(r, r, guesses) for r in {*rows[1:], most}] if guesses else []
        return cls(tuple(Bucket(r, r) for r in rows), tuple(sorted(shapes)), tuple(sorted(verify)))

    @property
    def all(self) -> tuple[Bucket, ...]:
        """Every bucket once."""
        return (*self.decode, *self.mixed, *self.verify)

    @property
    def most_guess_tokens(self) -> int:
        """Most tokens of a step that verifies guesses."""
        return self.verify[-1].tokens if self.verify else 0

    def pick_verify(self, tokens: int) -> Bucket:
        """The smallest bucket that holds a step that verifies guesses."""
        return next(b for b in self.verify if b.tokens >= tokens)

    def pick(self, tokens: int, rows: int, mixed: bool = False) -> Bucket:
        """The smallest bucket that holds the step.

        A pure decode (tokens == rows) may also be one of single-token chunks, unless `mixed`.
        """
        table = self.decode if tokens == rows and not mixed else self.mixed
        return next(b for b in table if b.tokens >= tokens and b.rows >= rows)
