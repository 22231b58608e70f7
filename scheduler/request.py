"""Request: what a client asked for. Sequence: one sample of it, with its tokens and its blocks."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Literal

FinishReason = Literal["stop", "length", "abort"]


@dataclass(slots=True, eq=False)
class Request:
    """One request as the scheduler sees it.

    Args:
        max_tokens: most output tokens.
        stop_token_ids: ids that end it, EOS included.
        min_tokens: ends by stop ids only from this many output tokens on.
        priority: lower runs first (policy `priority` only).
        arrival_time: seconds; breaks ties among equal priorities.
        cache_salt: only requests with the same salt share cached blocks.
        payload: the scheduler doesn't read it; the runner's sampling settings.
        n: samples of the one prompt; they share the prompt's full blocks.
        adapter: identifies the adapter by its weights (not by name); None is the base model.
        read_prefix_cache: False computes every prompt token (for prompt logprobs).
        await_tokens: what may follow a token depends on it (a beam), so no step is planned for
            a sample while its last token is in flight.
    """

    request_id: str
    prompt_token_ids: list[int]
    max_tokens: int
    stop_token_ids: frozenset[int] = frozenset()
    min_tokens: int = 0
    priority: int = 0
    arrival_time: float = 0.0
    cache_salt: str | None = None
    payload: Any = None
    n: int = 1
    adapter: bytes | None = None
    read_prefix_cache: bool = True
    await_tokens: bool = False


class Status(IntEnum):
    """What a sequence does at present."""

    HELD = 0  # waits for another sample's prompt, to share its blocks
    WAITING = 1  # in the queue
    FORKED = 2  # shares blocks, and gets a slot in the next step
    PREFILL = 3  # has slot and blocks; known tokens are left to compute
    DECODE = 4  # has slot and blocks; one token in every step (DecodeRows)
    DRAFT = 5  # has slot and blocks; the next step verifies drafts, or one in flight does
    LAST = 6  # its last token is in flight; slot and blocks are freed already
    ENDED = 7


@dataclass(slots=True, eq=False)
class Sequence:
    """One sample of a request. The scheduler alone writes it.

    The engine reads request, index, slot (-1 without one), output_token_ids, num_cached_tokens
    (prefix-cache hits of the first admission), num_preemptions, finish_reason and stop_reason.
    The other fields are the scheduler's own.
    """

    request: Request
    index: int = 0
    slot: int = -1
    output_token_ids: list[int] = field(default_factory=list)
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: int | None = None

    num_prompt: int = field(init=False)  # prompt tokens
    order: int = 0  # of arrival
    limit: int = 0  # most output tokens, max_model_len taken into account
    status: Status = Status.HELD
    num_computed: int = 0  # tokens whose KV is planned; not kept up to date in DECODE: position()
    decode_offset: int = 0  # step - position, the same in every step while in DECODE
    end_step: int = -1  # first step without a row for it, in DECODE and LAST
    last_step: int = -1  # when it was preempted: the last step that may have a row of it
    row: int = -1  # index among the decode rows
    tables: tuple[list[int], ...] = ()  # block ids a cache group; 0 where before the window
    hashes: list[bytes] = field(default_factory=list)  # of full blocks, as far as known
    num_registered: int = 0  # leading blocks that are in the prefix cache
    adapter_slot: int | None = None  # while it has a slot itself

    def __post_init__(self) -> None:
        self.num_prompt = len(self.request.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Known tokens: prompt and output."""
        return self.num_prompt + len(self.output_token_ids)

    def position(self, step: int) -> int:
        """Position of the first token that is not planned before `step`."""
        return step - self.decode_offset if self.status is Status.DECODE else self.num_computed

    def token_ids(self, start: int, stop: int) -> list[int]:
        """Known tokens [start, stop)."""
        prompt, split = self.request.prompt_token_ids, self.num_prompt
        if stop <= split:
            return prompt[start:stop]
        if start >= split:
            return self.output_token_ids[start - split : stop - split]
        return prompt[start:] + self.output_token_ids[: stop - split]
