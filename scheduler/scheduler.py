"""Scheduler: decides what each step computes, and for whom there is memory."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence as SequenceOf
from itertools import compress

from scheduler.blocks import NULL_BLOCK
from scheduler.config import SchedulerConfig
from scheduler.decodes import DecodeRows
from scheduler.errors import SchedulerError
from scheduler.events import BlockEvent
from scheduler.limits import check_length, check_queue, longest_sequence
from scheduler.parts import Flight, PlanParts
from scheduler.plan import Chunk, StepPlan, StepResult
from scheduler.policies import make_policy
from scheduler.registry import Registry
from scheduler.request import FinishReason, Request, Sequence, Status
from scheduler.stats import SchedulerStats
from scheduler.swap import HostSwap
from scheduler.tables import BlockTables


class Scheduler:
    """Shares one block pool and one token budget a step among requests.

    add_request() and abort() at any time; schedule() for the next step, which may come before
    update() for the step before it: a running decode is taken to get one token from each step in
    flight, and update() drops the rows of those that turn out to have ended. Not thread-safe.

    Order within a step: running decodes and new forks, one token each (the budget always covers
    them); running prompts, in order of admission; then, if nothing was preempted, waiting
    sequences. One starts only when all its known tokens fit, and gets their blocks at once, so only
    the growth of decodes (and windows, and forks) can run out of blocks and preempt. The most
    urgent running sequence is never preempted and fits alone, so every request ends.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.tables = BlockTables(config)
        longest = longest_sequence(
            config.num_blocks, config.block_size, config.cache_groups, config.max_num_batched_tokens
        )
        self.max_model_len = min(config.max_model_len, longest)
        self._registry = Registry()
        self._waiting = make_policy(
            config.policy, lambda sequence: len(self.tables.lookup(sequence)[0])
        )
        self._held: dict[Sequence, list[Sequence]] = {}  # samples, by the one they wait for
        self._forked: dict[Sequence, None] = {}
        self._prefills: dict[Sequence, None] = {}
        self._decodes = DecodeRows(config.block_size)
        self._drafts: dict[Sequence, tuple[int, ...]] = {}  # for the next step
        self._verifying: dict[Sequence, None] = {}  # drafts in flight
        self._lasts: dict[int, list[Sequence]] = {}  # by the step that they sit out
        self._free_slots = list(range(config.max_num_seqs))
        self._swap = HostSwap(config)
        self._flights: deque[Flight] = deque()
        self._step = 0  # the next to be planned
        self._updated = -1
        self._waiting_tokens = 0
        self._watermark = int(config.watermark * config.num_blocks)
        self._prefix_queries = self._prefix_hits = 0
        self._preemptions = self._swaps = self._recomputed_tokens = 0

    # -- arrival, forks and ends

    def add_request(self, request: Request) -> Sequence:
        """Queues a request, and returns its first sample; StepResult brings the others.

        Raises:
            RequestTooLongError: prompt and one output token exceed max_model_len, which is the
                configured one or, if smaller, what the whole block pool holds.
            QueueFullError: more waits already than the configured limits allow.
            SchedulerError: the id is in use, the prompt is empty, or a number is out of range.
        """
        if request.request_id in self._registry:
            raise SchedulerError(f"request id {request.request_id!r} is in use")
        check_length(request, self.config.max_model_len, self.max_model_len)
        check_queue(request, self.config, len(self._waiting), self._waiting_tokens)
        length = len(request.prompt_token_ids)
        limit = min(request.max_tokens, self.max_model_len - length)
        first, *others = self._registry.add_request(request, limit)
        if others:
            self._held[first] = others
        self.tables.hash_tokens(first, length)
        self._enqueue(first)
        return first

    def fork(self, sequence: Sequence, token_id: int) -> Sequence:
        """Starts a beam that differs from `sequence` in its last output token.

        They share all blocks; the one that writes first to the last, if it is partial, copies it.
        From a sequence that has ended, and so shares nothing, the beam starts in the queue.

        Raises:
            SchedulerError: the request has ended, or the sequence has no output yet, or all of it.
        """
        alive = self._registry.sequences(sequence.request.request_id)
        if not alive or alive[0].request is not sequence.request:
            raise SchedulerError("a request that has ended can't be forked")
        if not 0 < len(sequence.output_token_ids) < sequence.limit:
            raise SchedulerError("a sequence can be forked from its first output token to its last")
        child = self._registry.add_fork(sequence)
        child.output_token_ids = [*sequence.output_token_ids[:-1], token_id]
        self._share(child, sequence, child.num_tokens - 1)
        return child

    def _share(self, child: Sequence, parent: Sequence, num_tokens: int) -> None:
        """Starts child on parent's blocks if they are all planned, and else as any other."""
        planned = parent.status is Status.DECODE or parent.num_computed >= num_tokens
        if parent.tables and planned and self.tables.share(child, parent, num_tokens):
            child.status = Status.FORKED
            child.num_computed = num_tokens
            self._forked[child] = None
        else:
            self._enqueue(child)

    def abort(self, request_id: str) -> list[Sequence]:
        """Ends a request at once, wherever it is; returns its sequences that were still alive."""
        ended = self._registry.sequences(request_id)
        for sequence in ended:
            self._end(sequence, "abort")
        return ended

    def end(self, sequence: Sequence, reason: FinishReason = "abort") -> None:
        """Ends one sequence at once (a dropped beam, a stop string), unless it has already."""
        if sequence.finish_reason is None:
            self._end(sequence, reason)

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        status, sequence.status = sequence.status, Status.ENDED
        sequence.finish_reason = reason
        if status is Status.WAITING:
            self._waiting_tokens -= sequence.num_queued
            self._waiting.discard(sequence)
            self._swap.drop(sequence)
        elif status is Status.HELD:
            next(held for held in self._held.values() if sequence in held).remove(sequence)
        elif status is not Status.LAST:
            self._vacate(sequence, status)
        self._registry.remove(sequence)
        heirs = self._held.pop(sequence, None)
        if heirs:
            self._held[heirs[0]] = heirs[1:]
            self._enqueue(heirs[0])

    def _enqueue(self, sequence: Sequence) -> None:
        sequence.status = Status.WAITING
        sequence.num_queued = sequence.num_tokens
        self._waiting_tokens += sequence.num_queued
        self._waiting.push(sequence)

    def _vacate(self, sequence: Sequence, status: Status) -> None:
        """Takes slot and blocks back. The content of its full blocks stays findable."""
        if status is Status.DECODE:
            self._decodes.remove(sequence, self._step)
        elif status is Status.PREFILL:
            del self._prefills[sequence]
        elif status is Status.FORKED:
            del self._forked[sequence]
        elif status is Status.DRAFT:
            self._drafts.pop(sequence, None)
            self._verifying.pop(sequence, None)
        self.tables.register(sequence, min(sequence.num_computed, sequence.num_tokens))
        self.tables.release(sequence)
        if sequence.slot >= 0:
            heapq.heappush(self._free_slots, sequence.slot)
            sequence.slot = -1

    def draft(self, sequence: Sequence, token_ids: SequenceOf[int]) -> int:
        """Offers guesses of a decode's next tokens, to be verified in the next step.

        Returns:
            How many are taken: 0 if the sequence doesn't decode, or a step in flight computes its
            next token already; at most max_draft_tokens, and no more than it may still output.
        """
        known = sequence.num_tokens
        room = sequence.limit - len(sequence.output_token_ids) - 1
        count = min(len(token_ids), self.config.max_draft_tokens, room)
        if sequence.status is not Status.DECODE or self._step - sequence.base != known - 1:
            return 0
        if count > 0:
            self._decodes.remove(sequence, self._step)
            sequence.status = Status.DRAFT
            self._drafts[sequence] = tuple(token_ids[:count])
        return max(count, 0)

    # -- the plan

    def schedule(self) -> StepPlan | None:
        """Plans the next step; None when there is nothing to do before an update or an arrival."""
        step, parts = self._step, PlanParts()
        for sequence in self._decodes.ending(step):
            self._vacate(sequence, Status.DECODE)
            sequence.status = Status.LAST
            self._lasts.setdefault(step, []).append(sequence)
        forks = self._place_forks()
        preempted = self._grow(forks, parts)
        forks = [sequence for sequence in forks if sequence.status is Status.PREFILL]
        for sequence in forks:
            parts.start(sequence)
        self._extend_drafts(parts)
        rows = self._decodes.rows()
        parts.num_tokens = len(rows.slots) + sum(1 + len(tokens) for _, tokens in parts.drafts)
        # Forks first: with one token each they keep pace with the decodes that they came from.
        for sequence in dict.fromkeys([*forks, *self._prefills]):
            self._add_chunk(sequence, parts)
        if not preempted:
            self._admit(parts)
        plan = parts.build(step, rows)
        if plan is None:
            return None
        self._step = step + 1
        for sequence, chunk in parts.chunks:
            if chunk.samples:
                self._begin_decode(sequence)
        self._verifying.update(dict.fromkeys(self._drafts))
        self._drafts.clear()
        drafted = [sequence for sequence, _ in parts.drafts]
        chunked = [sequence for sequence, _ in parts.chunks]
        self._flights.append(Flight(plan, rows, drafted, chunked, self._registry.num_ended))
        return plan

    def is_steady(self, steps: int) -> bool:
        """Whether each of the next plans, so many, is one token more of the rows that decode now,
        and nothing else: nobody waits, no prompt, fork or draft is in work, none of the rows
        reaches its last token before, and the blocks that they need are free.

        Stop tokens aren't thought of: what a row gets after one is dropped by update().
        """
        if self._waiting or self._forked or self._prefills or self._drafts or self._verifying:
            return False
        blocks = self._decodes.num_crossing(self._step, steps) * len(self.tables.windows)
        return self._decodes.stay(self._step, steps) and blocks <= self.tables.pool.num_free

    def _place_forks(self) -> list[Sequence]:
        """Gives slots to new forks; those that find none are queued."""
        placed = []
        for sequence in list(self._forked):
            if self._free_slots:
                del self._forked[sequence]
                self._occupy(sequence)
                placed.append(sequence)
            else:
                self._vacate(sequence, Status.FORKED)
                self._enqueue(sequence)
        return placed

    def _occupy(self, sequence: Sequence) -> None:
        sequence.slot = heapq.heappop(self._free_slots)
        sequence.status = Status.PREFILL
        self._prefills[sequence] = None

    def _grow(self, forks: list[Sequence], parts: PlanParts) -> bool:
        """Gives blocks to those that need one in this step, most urgent first.

        Returns whether others had to give theirs up for it.
        """
        step, tables = self._step, self.tables
        needy = self._decodes.crossing(step)
        # Prompts got their blocks when they were admitted, unless a window moves on or they share.
        others = [*self._drafts, *(self._prefills if tables.has_windows else forks)]
        if (len(needy) + len(others)) * len(tables.windows) > tables.pool.num_free:
            needy = sorted(needy + others, key=self._waiting.key)
        elif tables.is_simple:
            parts.new_blocks = tables.cross(needy)
            needy = others
        else:
            needy += others
        victims: list[Sequence] | None = None
        for sequence in needy:
            num_tokens = 1
            if sequence.status is Status.DECODE:
                position = step - sequence.base
                tables.register(sequence, min(position, sequence.num_tokens))
            elif sequence.status is Status.WAITING:
                continue  # preempted by one before it
            else:
                position = sequence.num_computed
                if sequence.status is Status.PREFILL:
                    known = sequence.num_tokens
                    num_tokens = min(known - position, self.config.max_num_batched_tokens)
            while (entries := tables.grow(sequence, position, num_tokens)) is None:
                if victims is None:
                    running = [*self._prefills, *self._decodes.rows().sequences]
                    running += [*self._drafts, *self._verifying]
                    victims = sorted(running, key=self._waiting.key)
                victim = victims.pop()
                self._preempt(victim, parts)
                if victim is sequence:
                    break
            else:
                if entries:
                    parts.growth[sequence] = entries
        return victims is not None

    def _preempt(self, sequence: Sequence, parts: PlanParts) -> None:
        """Sends a running sequence back to the queue, with nothing of it left in the plan."""
        growth = parts.growth.pop(sequence, ())
        if sequence.status is Status.DECODE:
            sequence.num_computed = self._step - sequence.base
        if all(source == NULL_BLOCK for *_, source in growth):
            parts.swap_outs += self._swap.move_out(sequence)
        self._vacate(sequence, sequence.status)
        sequence.num_preemptions += 1
        sequence.hold_step = self._step - 1
        self._preemptions += 1
        if sequence.host_tables:
            self._swaps += 1
        else:
            self._recomputed_tokens += sequence.num_computed
            sequence.num_computed = 0
        self._enqueue(sequence)

    def _extend_drafts(self, parts: PlanParts) -> None:
        """Plans drafts, fewer where their blocks aren't free: nobody is preempted for a guess."""
        for sequence, tokens in self._drafts.items():
            count = len(tokens)
            while (entries := self.tables.grow(sequence, sequence.num_computed, 1 + count)) is None:
                count -= 1
            parts.growth.setdefault(sequence, []).extend(entries)
            parts.drafts.append((sequence, tokens[:count]))

    def _add_chunk(self, sequence: Sequence, parts: PlanParts) -> None:
        """Plans the next known tokens of a sequence, as far as the budget goes."""
        budget = self.config.max_num_batched_tokens - parts.num_tokens
        start, known = sequence.num_computed, sequence.num_tokens
        most = self.config.long_prefill_token_threshold
        if most and len(self._prefills) + len(self._waiting) > 1:
            budget = min(budget, most)
        num_tokens = min(budget, known - start)
        if num_tokens <= 0:
            return
        stop = start + num_tokens
        chunk = Chunk(sequence.slot, start, sequence.token_ids(start, stop), stop == known)
        parts.chunks.append((sequence, chunk))
        parts.num_tokens += num_tokens
        sequence.num_computed = stop
        self.tables.register(sequence, stop)

    def _admit(self, parts: PlanParts) -> None:
        """Starts waiting sequences, in order, while slots, budget and blocks last."""
        most = self.config.max_num_batched_tokens
        while parts.num_tokens < most and self._free_slots and (sequence := self._waiting.peek()):
            if sequence.hold_step > self._updated or not self._give_blocks(sequence, parts):
                break
            self._waiting.pop()
            self._waiting_tokens -= sequence.num_queued
            self._occupy(sequence)
            parts.start(sequence)
            self._add_chunk(sequence, parts)

    def _give_blocks(self, sequence: Sequence, parts: PlanParts) -> bool:
        """Blocks for all known tokens of a waiting sequence: all that it has, or none."""
        idle = len(self._free_slots) == self.config.max_num_seqs
        spare = 0 if idle else self._watermark
        if sequence.host_tables:
            if not self.tables.readmit(sequence, spare):
                return False
            parts.swap_ins += self._swap.move_in(sequence)
            return True
        # Looked up anew each time: what was found before may be gone.
        if not self.tables.admit(sequence, self.tables.lookup(sequence), spare):
            return False
        sequence.num_computed = sequence.num_registered * self.config.block_size
        if sequence.num_preemptions:
            self._recomputed_tokens -= sequence.num_computed
        elif self.config.enable_prefix_caching and sequence.request.read_prefix_cache:
            sequence.num_cached_tokens = sequence.num_computed
            self._prefix_queries += sequence.num_tokens
            self._prefix_hits += sequence.num_computed
        return True

    def _begin_decode(self, sequence: Sequence) -> None:
        """All its tokens are planned: from the next step on it gets one a step."""
        del self._prefills[sequence]
        remaining = sequence.limit - len(sequence.output_token_ids) - 1
        if sequence.request.await_tokens and remaining:
            sequence.status = Status.DRAFT
            self._verifying[sequence] = None
        else:
            self._decodes.add(sequence, self._step, sequence.num_computed, remaining)
        for sample in self._held.pop(sequence, ()):
            self._share(sample, sequence, sample.num_tokens - 1)

    # -- the results

    def update(
        self,
        plan: StepPlan,
        sampled: SequenceOf[int],
        drafted: SequenceOf[SequenceOf[int]] = (),
    ) -> StepResult:
        """Takes the results of the oldest plan in flight.

        Args:
            sampled: one token id a row, decode slots and then chunks; a chunk that doesn't sample
                and a row with drafts have an ignored value.
            drafted: for each of plan.drafts the drafts that were accepted and the token sampled
                after them, so at least one id.
        """
        flight = self._flights.popleft()
        if flight.plan is not plan:
            raise SchedulerError(f"plan {plan.step} isn't the oldest in flight")
        self._updated = plan.step
        rows = flight.rows
        sequences, outputs, tokens = rows.sequences, rows.outputs, list(sampled)
        if flight.drafted or flight.chunks:
            samples = [chunk.samples for chunk in plan.chunks]
            started = list(compress(flight.chunks, samples))
            sequences = sequences + started
            outputs = outputs + [sequence.output_token_ids for sequence in started]
            sampled = tokens
            tokens = sampled[: len(rows.slots)]
            tokens += compress(sampled[len(plan.decode_slots) :], samples)
        if flight.num_ended != self._registry.num_ended:
            alive = [sequence.finish_reason is None for sequence in sequences]
            sequences = list(compress(sequences, alive))
            outputs = list(compress(outputs, alive))
            tokens = list(compress(tokens, alive))
        any(map(list.append, outputs, tokens))  # append returns None: all are visited, in C
        finished = self._find_finished(plan.step, sequences, tokens)
        for sequence in flight.chunks:
            # Planned no further than the chunk: its first token was awaited.
            if sequence in self._verifying and sequence.num_computed < sequence.num_tokens:
                self._resume(sequence)
        result = StepResult(sequences, tokens, finished)
        return self._verify(flight, sampled, drafted, result) if flight.drafted else result

    def _find_finished(
        self, step: int, sequences: list[Sequence], tokens: list[int]
    ) -> list[Sequence]:
        """Ends those whose new token is a stop, or their last by length."""
        finished: list[Sequence] = []
        stops = self._registry.stops
        if not stops.isdisjoint(tokens):
            for row in [row for row, token in enumerate(tokens) if token in stops]:
                if self._ends_by_stop(sequences[row], tokens[row]):
                    finished.append(sequences[row])
        for sequence in self._lasts.pop(step + 1, []) + self._decodes.ending(step + 1):
            if sequence.finish_reason is None:
                self._end(sequence, "length")
                finished.append(sequence)
        return finished

    def _ends_by_stop(self, sequence: Sequence, token: int) -> bool:
        request = sequence.request
        if token not in request.stop_token_ids:
            return False
        if len(sequence.output_token_ids) < request.min_tokens:
            return False
        sequence.stop_reason = token
        self._end(sequence, "stop")
        return True

    def _verify(
        self,
        flight: Flight,
        sampled: SequenceOf[int],
        drafted: SequenceOf[SequenceOf[int]],
        result: StepResult,
    ) -> StepResult:
        """Adds the rows with drafts, which get as many tokens as were accepted, up to an end."""
        plan, first = flight.plan, len(flight.rows.slots)
        emitted = {first + i: [sampled[first + i]] for i in range(len(flight.drafted))}
        emitted |= {
            draft.row: list(tokens) for draft, tokens in zip(plan.drafts, drafted, strict=True)
        }
        sequences, tokens = list(result.sequences), list(result.token_ids)
        finished = list(result.finished)
        for row, sequence in enumerate(flight.drafted, first):
            if sequence.finish_reason is not None:
                continue
            for token in emitted[row]:
                sequence.output_token_ids.append(token)
                sequences.append(sequence)
                tokens.append(token)
                if self._ends_by_stop(sequence, token):
                    break
                if len(sequence.output_token_ids) == sequence.limit:
                    self._end(sequence, "length")
                    break
            if sequence.finish_reason is not None:
                finished.append(sequence)
            elif sequence.status is Status.DRAFT:
                self._resume(sequence)
        return StepResult(sequences, tokens, finished)

    def _resume(self, sequence: Sequence) -> None:
        """Lets a row whose last token was awaited go on."""
        del self._verifying[sequence]
        if sequence.request.await_tokens:
            sequence.num_computed = sequence.num_tokens - 1
            self._drafts[sequence] = ()
        else:
            remaining = sequence.limit - len(sequence.output_token_ids)
            self._decodes.add(sequence, self._step, sequence.num_tokens - 1, remaining)

    # -- figures

    def sequences(self, request_id: str) -> list[Sequence]:
        """A request's sequences that are alive; none for an unknown id."""
        return self._registry.sequences(request_id)

    def started(self) -> list[str]:
        """Requests that lose something when the device's state is lost: all but those that wait.
        A preempted one waits too, once no token of it is in flight."""
        return self._registry.started(self._updated)

    @property
    def num_queued(self) -> int:
        """Sequences in the queue, which max_queued_requests counts."""
        return len(self._waiting)

    @property
    def request_ids(self) -> list[str]:
        """Of all requests that have yet to end."""
        return self._registry.request_ids

    @property
    def has_unfinished(self) -> bool:
        """Whether any request has yet to end."""
        return self._registry.num_live > 0

    @property
    def awaits_tokens(self) -> bool:
        """Whether a row can't be planned before the results of the steps in flight."""
        return bool(self._verifying)

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached content (new weights); refused (False) while blocks are used."""
        return self.tables.pool.reset()

    def take_events(self) -> list[BlockEvent]:
        """Block events since the last call; none unless enable_events is set."""
        log = self.tables.log
        events = list(log or ())
        if log:
            log.clear()
        return events

    def stats(self) -> SchedulerStats:
        pool = self.tables.pool
        return SchedulerStats(
            running=self.config.max_num_seqs - len(self._free_slots),
            waiting=len(self._waiting) + sum(map(len, self._held.values())) + len(self._forked),
            waiting_tokens=self._waiting_tokens,
            blocks_total=pool.num_blocks - 1,
            blocks_used=pool.num_used,
            blocks_free=pool.num_free,
            host_blocks_used=self.config.num_host_blocks - self._swap.num_free,
            prefix_queries=self._prefix_queries,
            prefix_hits=self._prefix_hits,
            preemptions=self._preemptions,
            swaps=self._swaps,
            recomputed_tokens=self._recomputed_tokens,
        )
