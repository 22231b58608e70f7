"""Scheduler: decides what each step computes, and for whom there is memory."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from dataclasses import dataclass
from itertools import compress

from scheduler.config import SchedulerConfig
from scheduler.decodes import DecodeRows, Rows
from scheduler.errors import QueueFullError, RequestTooLongError, SchedulerError
from scheduler.plan import Chunk, SlotStart, StepPlan, StepResult
from scheduler.policies import make_policy
from scheduler.request import FinishReason, Request, Sequence, Status
from scheduler.stats import SchedulerStats
from scheduler.tables import BlockTables, Growth


@dataclass(slots=True)
class _Flight:
    """A plan whose results aren't known yet, and whose rows they are."""

    plan: StepPlan
    rows: Rows
    chunks: list[Sequence]
    num_ended: int  # of all sequences so far: tells whether a row's sequence may have ended since


class Scheduler:
    """Shares one block pool and one token budget a step among requests.

    add_request() and abort() at any time; schedule() for the next step, which may come before
    update() for the step before it. Not thread-safe.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.tables = BlockTables(config)
        self.max_model_len = min(config.max_model_len, self.tables.longest())
        self._waiting = make_policy(config.policy)
        self._prefills: dict[Sequence, None] = {}
        self._decodes = DecodeRows(config.block_size)
        self._lasts: dict[int, list[Sequence]] = {}  # by the step that they sit out
        self._free_slots = list(range(config.max_num_seqs))
        self._requests: dict[str, list[Sequence]] = {}
        self._flights: deque[_Flight] = deque()
        self._step = 0
        self._updated = -1
        self._num_arrived = 0
        self._num_ended = 0
        self._num_live = 0
        self._waiting_tokens = 0
        self._stops: set[int] = set()
        self._stop_counts: Counter[int] = Counter()
        self._watermark = int(config.watermark * self.tables.pool.num_blocks)
        self._prefix_queries = self._prefix_hits = 0
        self._preemptions = self._swaps = self._recomputed_tokens = 0

    # -- arrival and abort

    def add_request(self, request: Request) -> Sequence:
        """Queues a request.

        Raises:
            RequestTooLongError: prompt and one output token exceed max_model_len, which is the
                configured one or, if smaller, what the whole block pool holds.
            QueueFullError: more waits already than the configured limits allow.
            SchedulerError: the id is in use, or the prompt is empty.
        """
        length = len(request.prompt_token_ids)
        self._check(request, length)
        sequence = Sequence(request, order=self._num_arrived)
        self._num_arrived += 1
        sequence.limit = max(1, min(request.max_tokens, self.max_model_len - length))
        self.tables.hash_tokens(sequence, length)
        self._requests[request.request_id] = [sequence]
        self._num_live += 1
        for token in request.stop_token_ids:
            self._stop_counts[token] += 1
            self._stops.add(token)
        self._enqueue(sequence)
        return sequence

    def _check(self, request: Request, length: int) -> None:
        config = self.config
        if request.request_id in self._requests:
            raise SchedulerError(f"request id {request.request_id!r} is in use")
        if length == 0:
            raise SchedulerError("a prompt needs at least one token")
        if length >= self.max_model_len:
            why = "" if self.max_model_len == config.max_model_len else ", all that the pool holds"
            raise RequestTooLongError(
                f"a prompt of {length} tokens and an output token exceed the limit of "
                f"{self.max_model_len} tokens{why}",
                self.max_model_len,
            )
        most = config.max_queued_requests
        if most is not None and len(self._waiting) >= most:
            raise QueueFullError(f"{most} requests wait already", most)
        most = config.max_queued_tokens
        if most is not None and self._waiting_tokens + length > most:
            raise QueueFullError(
                f"{self._waiting_tokens} of at most {most} tokens wait already", most
            )

    def abort(self, request_id: str) -> list[Sequence]:
        """Ends a request at once, wherever it is; returns its sequences that were still alive."""
        ended = list(self._requests.get(request_id, ()))
        for sequence in ended:
            self._end(sequence, "abort")
        return ended

    def _enqueue(self, sequence: Sequence) -> None:
        sequence.status = Status.WAITING
        sequence.num_queued = sequence.num_tokens
        self._waiting_tokens += sequence.num_queued
        self._waiting.push(sequence)

    # -- the plan

    def schedule(self) -> StepPlan | None:
        """Plans the next step; None when there is nothing to do before an update or an arrival."""
        step = self._step
        for sequence in self._decodes.ending(step):
            self._vacate(sequence, sequence.status)
            sequence.status = Status.LAST
            self._lasts.setdefault(step, []).append(sequence)
        growth, preempted = self._grow(step)
        rows = self._decodes.rows()
        budget = self.config.max_num_batched_tokens - len(rows.slots)
        chunks: list[tuple[Sequence, Chunk]] = []
        for sequence in self._prefills:
            budget -= self._add_chunk(sequence, budget, chunks)
        starts = [] if preempted else self._admit(budget, chunks)
        if not rows.slots and not chunks:
            return None
        for sequence, chunk in chunks:
            if chunk.samples:
                del self._prefills[sequence]
                remaining = sequence.limit - len(sequence.output_token_ids) - 1
                self._decodes.add(sequence, step + 1, sequence.num_computed, remaining)
        plan = StepPlan(
            step,
            rows.slots,
            tuple(chunk for _, chunk in chunks),
            tuple(starts),
            tuple(
                (sequence.slot, *entry) for sequence, entries in growth.items() for entry in entries
            ),
            (),
            len(rows.slots) + sum(len(chunk.token_ids) for _, chunk in chunks),
        )
        self._flights.append(
            _Flight(plan, rows, [sequence for sequence, _ in chunks], self._num_ended)
        )
        self._step = step + 1
        return plan

    def _grow(self, step: int) -> tuple[dict[Sequence, list[Growth]], bool]:
        """Gives blocks to those that need one in this step, most urgent first."""
        growth: dict[Sequence, list[Growth]] = {}
        victims: list[Sequence] | None = None
        needy = self._decodes.crossing(step)
        if self.tables.has_windows:
            needy += self._prefills
        needy.sort(key=self._waiting.key)
        for sequence in needy:
            if sequence.status is Status.DECODE:
                position, num_tokens = step - sequence.base, 1
                self.tables.register(sequence, min(position, sequence.num_tokens))
            elif sequence.status is Status.PREFILL:
                position = sequence.num_computed
                num_tokens = min(sequence.num_tokens - position, self.config.max_num_batched_tokens)
            else:
                continue  # preempted by one before it
            while (entries := self.tables.grow(sequence, position, num_tokens)) is None:
                if victims is None:
                    victims = sorted(
                        [*self._prefills, *self._decodes.rows().sequences], key=self._waiting.key
                    )
                victim = victims.pop()
                growth.pop(victim, None)
                self._preempt(victim)
                if victim is sequence:
                    break
            else:
                growth[sequence] = entries
        return growth, victims is not None

    def _preempt(self, sequence: Sequence) -> None:
        self._vacate(sequence, sequence.status)
        sequence.num_preemptions += 1
        sequence.hold_step = self._step - 1
        self._preemptions += 1
        self._recomputed_tokens += sequence.num_computed
        sequence.num_computed = 0
        self._enqueue(sequence)

    def _add_chunk(
        self, sequence: Sequence, budget: int, chunks: list[tuple[Sequence, Chunk]]
    ) -> int:
        """Plans its next known tokens, as far as the budget goes; returns how many."""
        start, known = sequence.num_computed, sequence.num_tokens
        most = self.config.long_prefill_token_threshold
        if most and len(self._prefills) + len(self._waiting) > 1:
            budget = min(budget, most)
        num_tokens = min(budget, known - start)
        if num_tokens <= 0:
            return 0
        stop = start + num_tokens
        chunk = Chunk(sequence.slot, start, sequence.token_ids(start, stop), stop == known)
        chunks.append((sequence, chunk))
        sequence.num_computed = stop
        self.tables.register(sequence, stop)
        return num_tokens

    def _admit(self, budget: int, chunks: list[tuple[Sequence, Chunk]]) -> list[SlotStart]:
        """Starts waiting sequences, in order, while slots, budget and blocks last."""
        starts = []
        while budget > 0 and self._free_slots and (sequence := self._waiting.peek()):
            known = sequence.num_tokens
            hits = self.tables.lookup(sequence, known)
            spare = self._watermark if len(self._free_slots) < self.config.max_num_seqs else 0
            if sequence.hold_step > self._updated or not self.tables.admit(
                sequence, known, hits, spare
            ):
                break
            self._waiting.pop()
            self._waiting_tokens -= sequence.num_queued
            sequence.slot = heapq.heappop(self._free_slots)
            sequence.status = Status.PREFILL
            sequence.num_computed = sequence.num_registered * self.config.block_size
            self._count_hits(sequence, known)
            self._prefills[sequence] = None
            starts.append(
                SlotStart(
                    sequence.slot,
                    sequence,
                    tuple(tuple(table) for table in sequence.tables),
                    sequence.num_computed,
                )
            )
            budget -= self._add_chunk(sequence, budget, chunks)
        return starts

    def _count_hits(self, sequence: Sequence, known: int) -> None:
        if sequence.num_preemptions:
            self._recomputed_tokens -= sequence.num_computed
        elif self.config.enable_prefix_caching and sequence.request.read_prefix_cache:
            sequence.num_cached_tokens = sequence.num_computed
            self._prefix_queries += known
            self._prefix_hits += sequence.num_computed

    # -- the results

    def update(self, plan: StepPlan, sampled: list[int]) -> StepResult:
        """Takes the results of the oldest plan in flight.

        Args:
            sampled: one token id a row, decode slots and then chunks; a chunk that doesn't sample
                has an ignored value.
        """
        flight = self._flights.popleft()
        if flight.plan is not plan:
            raise SchedulerError(f"plan {plan.step} isn't the oldest in flight")
        self._updated = plan.step
        rows = flight.rows
        sequences, outputs, tokens = rows.sequences, rows.outputs, sampled
        if flight.chunks:
            num_decodes = len(sequences)
            samples = [chunk.samples for chunk in plan.chunks]
            started = list(compress(flight.chunks, samples))
            sequences = sequences + started
            outputs = outputs + [sequence.output_token_ids for sequence in started]
            tokens = sampled[:num_decodes] + list(compress(sampled[num_decodes:], samples))
        if flight.num_ended != self._num_ended:
            alive = [sequence.finish_reason is None for sequence in sequences]
            sequences = list(compress(sequences, alive))
            outputs = list(compress(outputs, alive))
            tokens = list(compress(tokens, alive))
        any(map(list.append, outputs, tokens))
        return StepResult(sequences, tokens, self._finish(plan.step, sequences, tokens))

    def _finish(self, step: int, sequences: list[Sequence], tokens: list[int]) -> list[Sequence]:
        """Ends those whose new token is a stop, or their last by length."""
        finished = []
        if not self._stops.isdisjoint(tokens):
            for row, token in enumerate(tokens):
                if token in self._stops:
                    sequence = sequences[row]
                    request = sequence.request
                    if (
                        token in request.stop_token_ids
                        and len(sequence.output_token_ids) >= request.min_tokens
                    ):
                        sequence.stop_reason = token
                        self._end(sequence, "stop")
                        finished.append(sequence)
        for sequence in self._lasts.pop(step + 1, []) + self._decodes.ending(step + 1):
            if sequence.finish_reason is None:
                self._end(sequence, "length")
                finished.append(sequence)
        return finished

    def _vacate(self, sequence: Sequence, status: Status) -> None:
        """Takes slot and blocks back. The content of its full blocks stays findable."""
        if status is Status.DECODE:
            self._decodes.remove(sequence, self._step)
        else:
            self._prefills.pop(sequence)
        self.tables.register(sequence, min(sequence.num_computed, sequence.num_tokens))
        self.tables.release(sequence)
        heapq.heappush(self._free_slots, sequence.slot)
        sequence.slot = -1

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        status, sequence.status = sequence.status, Status.ENDED
        sequence.finish_reason = reason
        if status is Status.WAITING:
            self._waiting_tokens -= sequence.num_queued
            self._waiting.discard()
        elif status is not Status.LAST:
            self._vacate(sequence, status)
        self._num_ended += 1
        self._num_live -= 1
        request = sequence.request
        siblings = self._requests[request.request_id]
        siblings.remove(sequence)
        if not siblings:
            del self._requests[request.request_id]
            for token in request.stop_token_ids:
                self._stop_counts[token] -= 1
                if not self._stop_counts[token]:
                    del self._stop_counts[token]
                    self._stops.discard(token)

    # -- figures

    @property
    def has_unfinished(self) -> bool:
        """Whether any request has yet to end."""
        return self._num_live > 0

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached content (new weights); refused (False) while blocks are used."""
        return self.tables.pool.reset()

    def stats(self) -> SchedulerStats:
        pool = self.tables.pool
        return SchedulerStats(
            running=self.config.max_num_seqs - len(self._free_slots),
            waiting=len(self._waiting),
            waiting_tokens=self._waiting_tokens,
            blocks_total=pool.num_blocks - 1,
            blocks_used=pool.num_used,
            blocks_free=pool.num_free,
            prefix_queries=self._prefix_queries,
            prefix_hits=self._prefix_hits,
            preemptions=self._preemptions,
            swaps=self._swaps,
            recomputed_tokens=self._recomputed_tokens,
        )
