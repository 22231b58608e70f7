"""StepPlan: what one step of the device computes, as plain ints, and what changed since the last.

A sequence that runs owns a slot, a row of the runner's persistent state. The runner keeps a host
mirror of each slot (block table, computed tokens), which the plan's changes bring up to date; in a
steady decode a plan is therefore nearly empty. Rows of a step: the decode slots in order, then the
chunks in order.

Every plan must be run, and steps run in the order of their plans: the scheduler reuses a slot or a
block as soon as no later plan reads it, and lets cached blocks be found once their tokens are
planned.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

from scheduler.request import Sequence


@dataclass(frozen=True, slots=True)
class SlotStart:
    """A sequence takes a slot in this step (first admission, a fork, or after a preemption).

    Its tokens in this step come as a Chunk; len(sequence.output_token_ids) of its known tokens are
    outputs, so the next draw is for that output position.

    Args:
        block_ids: its whole block table so far, one list a cache group. Entries that lie wholly
            before a group's window are 0. Entries that the window leaves behind later are not
            updated.
        num_computed_tokens: tokens whose KV is already in those blocks (prefix-cache hits, or
            tokens that a fork shares).
        adapter_slot: where its adapter lies; None without one.
    """

    slot: int
    sequence: Sequence
    block_ids: tuple[tuple[int, ...], ...]
    num_computed_tokens: int
    adapter_slot: int | None = None


@dataclass(frozen=True, slots=True)
class Chunk:
    """Known tokens of one sequence to compute: a prompt or a part of it, or a replay.

    Args:
        start: position of the first token.
        token_ids: the tokens.
        samples: whether the last token's logits are sampled (the sequence is known no further).
    """

    slot: int
    start: int
    token_ids: SequenceOf[int]
    samples: bool


@dataclass(frozen=True, slots=True)
class Draft:
    """Guesses that a decode row verifies: it computes the token sampled last and then these.

    Args:
        row: its index in decode_slots.
        token_ids: the guessed tokens, at least one.
    """

    row: int
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. Apply in this order: copies, loads, starts, new_blocks; then run the rows.

    Args:
        step: counts plans from 0.
        decode_slots: slots that compute one token, the one sampled last (the device has it).
            The same tuple object as in the plan before when nothing changed.
        chunks: prefill work.
        starts: slots with a new occupant.
        new_blocks: (slot, group, index in the block table, block id), blocks that grew a table
            or took the place of one (after a copy).
        copies: (from, to) block pairs to copy before the step (copy-on-write).
        num_tokens: tokens the step computes, the sum over rows, drafts included.
        drafts: decode rows with draft tokens; Scheduler.draft is the only source of them. Such a
            row isn't planned again before its results are known.
        loads: adapter slots to write before the step, each with a sequence that has the adapter.
    """

    step: int
    decode_slots: tuple[int, ...] = ()
    chunks: tuple[Chunk, ...] = ()
    starts: tuple[SlotStart, ...] = ()
    new_blocks: tuple[tuple[int, int, int, int], ...] = ()
    copies: tuple[tuple[int, int], ...] = ()
    num_tokens: int = 0
    drafts: tuple[Draft, ...] = ()
    loads: tuple[tuple[int, Sequence], ...] = ()


@dataclass(frozen=True, slots=True)
class StepResult:
    """What update() found: rows that got a token, and the sequences that ended.

    Args:
        sequences, token_ids: parallel, in row order; rows whose token was dropped (aborted,
            already ended, a chunk that doesn't sample) are left out. A row whose drafts were
            accepted comes once for each of its tokens. Not to be changed: the lists may be shared.
        finished: sequences that ended here; each has finish_reason and stop_reason.
    """

    sequences: list[Sequence] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finished: list[Sequence] = field(default_factory=list)
