"""Scheduler: decides what each step computes, and which sequences hold blocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import replace

from scheduler.adapter_turns import AdapterTurns
from scheduler.arrival_checks import check_length, check_queue, longest_sequence
from scheduler.blocks.events import BlockEvent
from scheduler.blocks.tables import BlockTables
from scheduler.config import SchedulerConfig
from scheduler.errors import SchedulerError
from scheduler.plan import Chunk, StepPlan, StepResult
from scheduler.plan_builder import PendingPlan, PlanBuilder
from scheduler.policies import make_policy
from scheduler.recorder import Recorder
from scheduler.registry import Registry
from scheduler.request import FinishReason, Request, Sequence, Status
from scheduler.running import RunningSequences
from scheduler.stats import SchedulerStats


class Scheduler:
    """Shares one block pool and one token budget a step among requests.

    add_request() and abort() may be called at any time. schedule() plans the next step; it may be
    called before update() brings the results of the steps before it: a decode is assumed to get
    one token from each step in flight, and update() drops the rows of those that turn out to have
    ended. Not thread-safe.

    Order within a step: decodes and new forks, one token each (the budget always covers them);
    running prompts, in order of admission; then, if nothing was preempted, waiting sequences; and
    drafts, if no prompt is computed. A
    waiting sequence starts only when blocks for all its known tokens are free, and gets them at
    once, so only the growth of decodes (and windows, and forks) can run out of blocks and preempt.
    The most urgent running sequence is never preempted and fits alone, so every request ends.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        self.config = config
        self.tables = BlockTables(config)
        longest = longest_sequence(
            config.num_blocks, config.block_size, config.cache_groups, config.max_num_batched_tokens
        )
        self.max_model_len = min(config.max_model_len, longest)
        self._registry = Registry()
        self._running = RunningSequences(config)
        self._waiting = make_policy(
            config.policy, lambda sequence: len(self.tables.lookup(sequence)[0])
        )
        if config.max_adapters:
            adapters = self._running.adapters
            self._waiting = AdapterTurns(
                self._waiting, lambda sequence: adapters.can_start(sequence.request.adapter)
            )
        self._held: dict[Sequence, list[Sequence]] = {}  # samples, by the one they wait for
        # Sequences in LAST, by the first step without a row of theirs.
        self._last_in_flight: dict[int, list[Sequence]] = {}
        self._pending: deque[PendingPlan] = deque()  # oldest first
        self._is_full = False  # the last plan had no blocks for a sequence that waits
        self._step = 0  # the next to be planned
        self._updated = -1  # the last step whose results are known
        self._prefix_queries = self._prefix_hits = 0
        self._preemptions = self._recomputed_tokens = 0

    # -- arrival, forks and ends

    def check_queue(self, num_elsewhere: int = 0) -> None:
        """Refuses one more request while max_queued_requests sequences wait.

        add_request() doesn't check this: a request may have been accepted before it gets here.

        Args:
            num_elsewhere: accepted requests that wait before add_request() (for their grammar).

        Raises:
            QueueFullError: so many wait already.
        """
        check_queue(len(self._waiting) + num_elsewhere, self.config.max_queued_requests)

    def add_request(self, request: Request) -> Sequence:
        """Queues a request. Returns its first sample; StepResult brings the others.

        Raises:
            RequestTooLongError: the prompt exceeds max_model_len, which is the
                configured one or, if smaller, what the whole block pool holds.
            SchedulerError: the id is in use, the prompt is empty, or a number is out of range.
        """
        if request.request_id in self._registry:
            raise SchedulerError(f"request id {request.request_id!r} is in use")
        if request.adapter is not None and not self.config.max_adapters:
            raise SchedulerError("the request has an adapter, and max_adapters is 0")
        check_length(request, self.config.max_model_len, self.max_model_len)
        length = len(request.prompt_token_ids)
        limit = min(request.max_tokens, max(1, self.max_model_len - length))
        first, *others = self._registry.add_request(request, limit)
        if others:
            self._held[first] = others
        self.tables.hash_tokens(first, length)
        self._enqueue(first)
        return first

    def fork(self, sequence: Sequence, token_id: int) -> Sequence:
        """Starts a beam that differs from `sequence` in its last output token.

        They share all blocks; the one that writes first to the last, if it is partial, copies it.
        A fork of a sequence that has ended, and so has no blocks, starts in the queue.

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
        self._share(child, sequence)
        return child

    def _share(self, child: Sequence, parent: Sequence) -> None:
        """Starts child on parent's blocks of all tokens but its last, if those are planned and
        held; else it waits like any other."""
        position = child.num_tokens - 1
        planned = parent.status is Status.DECODE or parent.num_computed >= position
        if parent.tables and planned and self.tables.share(child, parent, position):
            self._running.add_fork(child, position)
        else:
            self._enqueue(child)

    def abort(self, request_id: str) -> list[Sequence]:
        """Ends a request at once, whatever it does; returns those of its sequences that had not
        ended."""
        ended = self._registry.sequences(request_id)
        for sequence in ended:
            self._end(sequence, "abort")
        return ended

    def end(self, sequence: Sequence, reason: FinishReason = "abort") -> None:
        """Ends one sequence at once (a dropped beam, a stop string), unless it has already."""
        if sequence.finish_reason is None:
            self._end(sequence, reason)

    def _end(self, sequence: Sequence, reason: FinishReason) -> None:
        status = sequence.status
        if status >= Status.FORKED and status is not Status.LAST:
            self._free(sequence)
        sequence.status, sequence.finish_reason = Status.ENDED, reason
        if status is Status.WAITING:
            self._waiting.discard(sequence)
        elif status is Status.HELD:
            next(held for held in self._held.values() if sequence in held).remove(sequence)
        self._registry.remove(sequence)
        held = self._held.pop(sequence, None)
        if held:  # the next sample computes the prompt for the others
            self._held[held[0]] = held[1:]
            self._enqueue(held[0])

    def _enqueue(self, sequence: Sequence) -> None:
        sequence.status = Status.WAITING
        self._waiting.push(sequence)

    def _free(self, sequence: Sequence) -> None:
        """Frees slot and blocks. The full blocks stay in the prefix cache."""
        self._running.remove(sequence, self._step)
        self.tables.register(sequence, min(sequence.num_computed, sequence.num_tokens))
        self.tables.release(sequence)

    def draft(self, sequence: Sequence, token_ids: SequenceOf[int]) -> int:
        """Proposes a decode's next tokens, to be verified in the next step.

        Returns:
            How many are taken: 0 if the sequence doesn't decode, or a step in flight computes its
            next token already; at most max_draft_tokens, and no more than it may still output.
        """
        return self._running.draft(sequence, token_ids, self._step)

    @property
    def can_draft(self) -> bool:
        """Whether the next step may verify drafts: it has, most likely, no prompt to compute."""
        starts = self._waiting and self._running.has_free_slot and not self._is_full
        return not (starts or self._running.prefills or self._running.forked)

    @property
    def decoding(self) -> SequenceOf[Sequence]:
        """The sequences that get one token in every step, drafts left out."""
        return self._running.decodes.batch().sequences

    # -- the plan

    def schedule(self) -> StepPlan | None:
        """Plans the next step; None when there is nothing to do before an update or an arrival."""
        step, building, running = self._step, PlanBuilder(), self._running
        for sequence in running.decodes.ended_before(step):
            self._free(sequence)
            sequence.status = Status.LAST
            self._last_in_flight.setdefault(step, []).append(sequence)
        forks = self._start_forks()
        preempted = self._grow_tables(forks, building)
        forks = [sequence for sequence in forks if sequence.status is Status.PREFILL]
        for sequence in forks:
            building.start(sequence)
        rows = running.decodes.batch()
        building.num_tokens = len(rows.slots) + len(running.drafts)
        # Forks first: with one token each they keep pace with the decodes that they came from.
        for sequence in dict.fromkeys([*forks, *running.prefills]):
            self._plan_chunk(sequence, building)
        self._is_full = preempted
        if not preempted:
            self._admit(building)
        self._plan_drafts(building)
        plan = building.build(step, rows)
        if plan is None:
            return None
        if loads := running.adapters.take_loads():
            plan = replace(plan, loads=loads)
        self._step = step + 1
        for sequence, chunk in building.chunks:
            if chunk.samples:
                self._begin_decode(sequence)
        running.await_drafts()
        drafted = [sequence for sequence, _ in building.drafts]
        chunked = [sequence for sequence, _ in building.chunks]
        self._pending.append(PendingPlan(plan, rows, drafted, chunked, self._registry.num_ended))
        return plan

    def is_steady(self, steps: int) -> bool:
        """Whether each of the next `steps` plans is one token for each sequence that decodes now,
        and nothing else: nothing waits, there is no prompt, fork or draft to compute, no sequence
        reaches its last token before, and the blocks that they need are free.

        Stop tokens aren't considered: update() drops what a row gets after one.
        """
        decodes = self._running.decodes
        if self._waiting or not self._running.all_decode:
            return False
        blocks = decodes.num_blocks_begun(self._step, steps) * len(self.tables.windows)
        unchanged = decodes.all_decode_until(self._step, self._step + steps)
        return unchanged and blocks <= self.tables.pool.num_free

    def _start_forks(self) -> list[Sequence]:
        """Gives slots to new forks, and returns these; those that find none are queued."""
        started = []
        for sequence in list(self._running.forked):
            if self._running.can_start(sequence):
                self._running.start(sequence)
                started.append(sequence)
            else:
                self._free(sequence)
                self._enqueue(sequence)
        return started

    def _grow_tables(self, forks: list[Sequence], building: PlanBuilder) -> bool:
        """Gives blocks to running sequences that need one in this step, most urgent first.

        Returns whether others were preempted for it.
        """
        step, tables, running = self._step, self.tables, self._running
        needy = running.decodes.beginning_block(step)
        # Prompts got their blocks when they were admitted, unless a window moves on or they share.
        others = [*running.drafts, *(running.prefills if tables.has_windows else forks)]
        if (len(needy) + len(others)) * len(tables.windows) > tables.pool.num_free:
            needy = sorted(needy + others, key=self._waiting.key)
        elif tables.is_simple:
            building.new_blocks = tables.append_blocks(needy)
            needy = others
        else:
            needy += others
        victims: list[Sequence] | None = None
        for sequence in needy:
            if sequence.status is Status.WAITING:
                continue  # preempted for one before it
            position, num_tokens = sequence.position(step), 1
            if sequence.status is Status.DECODE:
                tables.register(sequence, min(position, sequence.num_tokens))
            elif sequence.status is Status.PREFILL:
                known = sequence.num_tokens
                num_tokens = min(known - position, self.config.max_num_batched_tokens)
            while (entries := tables.grow(sequence, position, num_tokens)) is None:
                if victims is None:
                    victims = sorted(running.with_slots(), key=self._waiting.key)
                victim = victims.pop()
                self._preempt(victim, building)
                if victim is sequence:
                    break
            else:
                if entries:
                    building.growth[sequence] = entries
        return victims is not None

    def _preempt(self, sequence: Sequence, building: PlanBuilder) -> None:
        """Returns a running sequence to the queue; what was planned for it is removed.

        When it starts again all its tokens, prompt and output, are computed anew, but for those
        that the prefix cache still has.
        """
        building.growth.pop(sequence, None)
        self._recomputed_tokens += sequence.position(self._step)
        self._free(sequence)
        sequence.num_computed = 0
        sequence.num_preemptions += 1
        sequence.last_step = self._step - 1
        self._preemptions += 1
        self._enqueue(sequence)

    def _plan_drafts(self, building: PlanBuilder) -> None:
        """Plans the drafts that the step has room for, after all else: a guess preempts nothing,
        and takes no block from a prompt. A step that computes prompts verifies none."""
        most = self.config.max_draft_step_tokens or self.config.max_num_batched_tokens
        left = 0 if building.chunks else max(0, most - building.num_tokens)
        for sequence, tokens in self._running.drafts.items():
            count = min(len(tokens), left)
            while (entries := self.tables.grow(sequence, sequence.num_computed, 1 + count)) is None:
                count -= 1
            left -= count
            building.num_tokens += count
            building.growth.setdefault(sequence, []).extend(entries)
            building.drafts.append((sequence, tokens[:count]))

    def _plan_chunk(self, sequence: Sequence, building: PlanBuilder) -> None:
        """Plans the next known tokens of a sequence, as many as the budget allows."""
        start, known = sequence.num_computed, sequence.num_tokens
        budget = self.config.max_num_batched_tokens - building.num_tokens
        num_tokens = min(budget, known - start)
        if num_tokens <= 0:
            return
        stop = start + num_tokens
        chunk = Chunk(sequence.slot, start, sequence.token_ids(start, stop), stop == known)
        building.chunks.append((sequence, chunk))
        building.num_tokens += num_tokens
        sequence.num_computed = stop
        self.tables.register(sequence, stop)

    def _admit(self, building: PlanBuilder) -> None:
        """Starts waiting sequences, in the policy's order, while slots, budget and blocks last."""
        most, running = self.config.max_num_batched_tokens, self._running
        while building.num_tokens < most and running.has_free_slot:
            sequence = self._waiting.peek()
            # The tokens in flight of a preempted one must be known, since it computes them again.
            if sequence is None or sequence.last_step > self._updated:
                break
            if not self._take_blocks(sequence):
                self._is_full = True
                break
            self._waiting.pop()
            running.start(sequence)
            building.start(sequence)
            self._plan_chunk(sequence, building)

    def _take_blocks(self, sequence: Sequence) -> bool:
        """Takes blocks for all known tokens of a waiting sequence; False, with none taken, if too
        few are free."""
        # Looked up in each attempt: what an earlier one found may be evicted.
        if not self.tables.admit(sequence, self.tables.lookup(sequence)):
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
        """All known tokens are planned: from the next step on it gets one a step."""
        self._running.begin_decode(sequence, self._step)
        for sample in self._held.pop(sequence, ()):
            self._share(sample, sequence)

    # -- the results

    def update(
        self,
        plan: StepPlan,
        sampled: SequenceOf[int],
        drafted: SequenceOf[SequenceOf[int]] = (),
    ) -> StepResult:
        """Takes the results of the oldest plan in flight.

        Args:
            sampled: one token id a row, decode slots and then chunks. The values of a chunk that
                doesn't sample and of a row with drafts are ignored.
            drafted: for each of plan.drafts the drafts that were accepted and the token sampled
                after them, so at least one id.

        Raises:
            SchedulerError: an older plan is in flight.
        """
        pending = self._pending.popleft()
        if pending.plan is not plan:
            raise SchedulerError(f"plan {plan.step} isn't the oldest in flight")
        self._updated = plan.step
        any_ended = pending.num_ended != self._registry.num_ended
        sequences, outputs, tokens = pending.sampled_rows(sampled, any_ended)
        any(map(list.append, outputs, tokens))  # append returns None: any() visits all, in C
        finished = self._end_finished(plan.step, sequences, tokens)
        for sequence in pending.chunked:
            # With await_tokens nothing after the chunk was planned before its token was known.
            known = sequence.num_computed < sequence.num_tokens
            if known and sequence in self._running.awaited:
                self._running.resume(sequence, self._step)
        result = StepResult(sequences, tokens, finished)
        if not pending.drafted:
            return result
        return self._accept(pending.drafted_rows(sampled, drafted), result)

    def _end_finished(
        self, step: int, sequences: list[Sequence], tokens: list[int]
    ) -> list[Sequence]:
        """Ends those whose new token is a stop, or their last by length; returns them."""
        finished: list[Sequence] = []
        stops = self._registry.stops
        if not stops.isdisjoint(tokens):
            for row in [row for row, token in enumerate(tokens) if token in stops]:
                if self._end_by_stop(sequences[row], tokens[row]):
                    finished.append(sequences[row])
        last = self._last_in_flight.pop(step + 1, [])
        for sequence in last + self._running.decodes.ended_before(step + 1):
            if sequence.finish_reason is None:
                self._end(sequence, "length")
                finished.append(sequence)
        return finished

    def _end_by_stop(self, sequence: Sequence, token: int) -> bool:
        """Ends a sequence if the token that it just got is one of its stops."""
        request = sequence.request
        if token not in request.stop_token_ids:
            return False
        if len(sequence.output_token_ids) < request.min_tokens:
            return False
        sequence.stop_reason = token
        self._end(sequence, "stop")
        return True

    def _accept(
        self, rows: SequenceOf[tuple[Sequence, SequenceOf[int]]], result: StepResult
    ) -> StepResult:
        """Adds the rows with drafts, which get as many tokens as were accepted, up to an end."""
        sequences, tokens = list(result.sequences), list(result.token_ids)
        finished = list(result.finished)
        for sequence, accepted in rows:
            if sequence.finish_reason is not None:
                continue
            if sequence.status is Status.DRAFT:  # not preempted since
                sequence.num_computed += len(accepted)
            for token in accepted:
                sequence.output_token_ids.append(token)
                sequences.append(sequence)
                tokens.append(token)
                if self._end_by_stop(sequence, token):
                    break
                if len(sequence.output_token_ids) == sequence.limit:
                    self._end(sequence, "length")
                    break
            if sequence.finish_reason is not None:
                finished.append(sequence)
            elif sequence.status is Status.DRAFT:
                self._running.resume(sequence, self._step)
        return StepResult(sequences, tokens, finished)

    # -- state and figures

    def sequences(self, request_id: str) -> list[Sequence]:
        """A request's sequences that haven't ended; none for an unknown id."""
        return self._registry.sequences(request_id)

    def started(self) -> list[str]:
        """Ids of the requests that can't go on when the device's state is lost: all but those that
        wait. A preempted one counts as waiting once no token of it is in flight."""
        return self._registry.started(self._updated)

    @property
    def request_ids(self) -> list[str]:
        """Ids of all requests that haven't ended."""
        return self._registry.request_ids

    @property
    def has_unfinished(self) -> bool:
        """Whether there is a request that hasn't ended."""
        return self._registry.num_live > 0

    @property
    def awaits_tokens(self) -> bool:
        """Whether a row can't be planned before the results of the steps in flight."""
        return bool(self._running.awaited)

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached content (for new weights); refused (False) while blocks are used."""
        return self.tables.pool.reset()

    def forget_adapters(self) -> None:
        """The adapter slots' contents are lost, with all sequences that ran."""
        self._running.adapters.forget()

    @property
    def live_adapters(self) -> Mapping[bytes, int]:
        """How many requests that haven't ended have each adapter."""
        return self._registry.adapters

    def take_events(self) -> list[BlockEvent]:
        """Block events since the last call; none unless enable_events is set."""
        log = self.tables.log
        events = list(log or ())
        if log:
            log.clear()
        return events

    def watch(self) -> Recorder:
        """Reports from now on what changes in pool, tables and queue, until it is closed.

        One at a time. Without one, nothing is recorded.
        """
        # A table may be ahead of its tokens by the blocks of drafts that were not accepted.
        tail = 2 + self.config.max_draft_tokens // self.config.block_size
        pool, step = self.tables.pool, lambda: self._step
        return Recorder(pool, self._running, self._waiting, self._pending, step, tail)

    def stats(self) -> SchedulerStats:
        """The present figures."""
        pool, running = self.tables.pool, self._running
        return SchedulerStats(
            running=running.num_slots_used,
            waiting=len(self._waiting) + sum(map(len, self._held.values())) + len(running.forked),
            blocks_total=pool.num_blocks - 1,
            blocks_used=pool.num_used,
            blocks_free=pool.num_free,
            prefix_queries=self._prefix_queries,
            prefix_hits=self._prefix_hits,
            preemptions=self._preemptions,
            recomputed_tokens=self._recomputed_tokens,
            copies=self.tables.num_copies,
            evictions=pool.num_evicted,
        )
