"""EngineCore: schedules, runs, and hands tokens out. Knows no text, no HTTP, no other process."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec import structs

from jaxserve.config import EngineConfig
from jaxserve.engine.core.beams import Beams, guide
from jaxserve.engine.core.grammar_queue import GrammarQueue
from jaxserve.engine.core.protocol import EngineStats, Output, Ready, Submit
from jaxserve.engine.core.step_clock import StepClock
from jaxserve.engine.device.compilation.compile_guard import CompileGuard
from jaxserve.engine.device.pending_step import PendingStep, StepResults
from jaxserve.engine.device.sampling_state import SamplingRequest
from jaxserve.engine.startup.capacity import describe_cache
from jaxserve.engine.startup.start import start
from jaxserve.errors import (
    EngineError,
    InvalidRequestError,
    JaxserveError,
    OverloadedError,
    UnprocessableError,
)
from jaxserve.sampling.grammar import Grammar
from jaxserve.sampling.masks import MaskRules
from jaxserve.text.tokenizer import Tokenizer
from scheduler import (
    Request,
    RequestTooLongError,
    Scheduler,
    SchedulerConfig,
    SchedulerStats,
    Sequence,
    StepPlan,
)

log = logging.getLogger(__name__)

GRAMMAR_WAIT_S = 0.01  # how long an idle step waits for a grammar to compile
NOT_FINITE = "no token could be drawn: the model's logits weren't finite"


@contextmanager
def _blamed_on_the_step() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise _StepFailure(error) from error


@dataclass(frozen=True, slots=True)
class InFlight:
    """The plans of a dispatch, the device's answer to come, and when it was asked."""

    plans: list[StepPlan]
    handle: PendingStep
    started: float


class _StepFailure(Exception):
    """A step failed as a whole."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class EngineCore:
    """One model, one scheduler, one runner.

    Args:
        config: the engine's settings.
        model_path: the checkpoint, as checkpoints.pull returned it.
        tokenizer: the checkpoint's, for grammars and to know which tokens exist.
        progress: show progress bars on stderr.

    Raises:
        ModelError: the checkpoint can't be served.
        ConfigError: the settings don't fit the model or the machine.
    """

    def __init__(
        self,
        config: EngineConfig,
        model_path: Path,
        tokenizer: Tokenizer,
        progress: bool = False,
    ) -> None:
        started = start(config, model_path, tokenizer.num_ids, progress)
        limits, self._runner, self._vocab = started.limits, started.runner, started.vocab
        self._guard = CompileGuard(config.forbid_compile)
        self._scheduler = Scheduler(
            SchedulerConfig(
                num_blocks=limits.num_blocks,
                block_size=config.block_size,
                max_num_seqs=limits.max_num_seqs,
                max_num_batched_tokens=limits.max_num_batched_tokens,
                max_model_len=limits.max_model_len,
                enable_prefix_caching=config.enable_prefix_caching,
                policy=config.scheduling_policy,
                cache_groups=limits.layout.groups,
            )
        )
        self._beams = Beams(self._scheduler)
        self._grammars = GrammarQueue(tokenizer, self._vocab)
        self._decode_steps = config.decode_steps
        self._overlap, self._most_queued = config.overlap, config.max_queued_requests
        self._flights: deque[InFlight] = deque()  # oldest first
        self._started: list[StepPlan] = []  # of steps that aren't drawn, so not in flight yet
        self._clock = StepClock()
        self._last_step: tuple[float | None, int] = (None, 0)  # seconds and tokens, unreported
        self.ready = Ready(
            max_model_len=limits.max_model_len,
            vocab_size=started.model.vocab_size,
            embedding_size=started.model.hidden_size,
            num_blocks=limits.num_blocks,
            load_s=started.load_s,
            ready_s=started.ready_s,
            cache=describe_cache(limits),
            stats=EngineStats(self.stats),
        )

    @property
    def compiles(self) -> int:
        """Compilations since ready; anything but 0 is a fault."""
        return self._guard.count

    @property
    def has_work(self) -> bool:
        """Whether step() has anything to do."""
        return bool(self._flights) or self._scheduler.has_unfinished or len(self._grammars) > 0

    @property
    def request_ids(self) -> list[str]:
        """Of all requests that have yet to end."""
        return self._scheduler.request_ids + self._grammars.request_ids

    @property
    def stats(self) -> SchedulerStats:
        """Running, waiting (also for a grammar), blocks, hits, preemptions."""
        stats = self._scheduler.stats()
        return replace(stats, waiting=stats.waiting + len(self._grammars))

    def report(self) -> EngineStats:
        """What there is to say of the time since the last report."""
        (seconds, tokens), self._last_step = self._last_step, (None, 0)
        busy_s = time.monotonic() - self._flights[0].started if self._flights else 0.0
        return EngineStats(self.stats, self.compiles, self._clock.idle_s, seconds, tokens, busy_s)

    def prepare_grammars(self) -> None:
        """Does what the first request with a grammar would hold up all others for."""
        self._grammars.prepare()

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached text; refused (False) while any request holds blocks."""
        return self._scheduler.reset_prefix_cache()

    def close(self) -> None:
        """Lets go of process-wide hooks and threads."""
        self._guard.close()
        self._grammars.close()

    def submit(self, message: Submit) -> Output | None:
        """Registers a request; an Output only if it was refused at once."""
        if self._scheduler.num_queued + len(self._grammars) >= self._most_queued:
            error = OverloadedError(f"{self._most_queued} requests wait already")
            return _refusal(message, OverloadedError.__name__, error)
        if message.params.structured_outputs is None:
            return self._add(message, None)
        grammar = self._grammars.put(message)
        return None if grammar is None else self._add(message, grammar)

    def _add(self, message: Submit, compiled: Future[Grammar] | None) -> Output | None:
        """Hands a request to the scheduler; an Output only if that can't be."""
        try:
            self._register(message, None if compiled is None else compiled.result())
        except (InvalidRequestError, RequestTooLongError) as error:
            return _refusal(message, "InvalidRequestError", error)
        except UnprocessableError as error:
            return _refusal(message, UnprocessableError.__name__, error)
        except OverloadedError as error:
            return _refusal(message, OverloadedError.__name__, error)
        except Exception as error:  # whatever it is, it is this request's alone
            log.exception("request %s can't be taken in", message.request_id)
            self.abort(message.request_id)
            return _refusal(message, EngineError.__name__, error)
        return None

    def _register(self, message: Submit, grammar: Grammar | None) -> None:
        params = message.params
        assert params.max_tokens is not None
        masks = MaskRules.build(
            params, message.stop_token_ids, message.bad_words, grammar, self._vocab
        )
        searches = params.beam_search is not None
        request = Request(
            request_id=message.request_id,
            prompt_token_ids=message.prompt_token_ids,
            max_tokens=params.max_tokens,
            stop_token_ids=frozenset() if searches else message.stop_token_ids,
            min_tokens=params.min_tokens,
            priority=message.priority,
            arrival_time=time.monotonic(),
            cache_salt=message.cache_salt,
            payload=SamplingRequest(guide(params) if searches else params, masks, message.pool),
            n=1 if searches else params.n,
            read_prefix_cache=params.prompt_logprobs is None,
            await_tokens=searches,
        )
        first = self._scheduler.add_request(request)
        if searches:
            self._beams.start(first, message)

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Ends a request, or one choice of it, and frees its blocks; unknown ids are ignored."""
        if index is None:
            self._grammars.cancel(request_id)
            self._beams.drop(request_id)
            self._scheduler.abort(request_id)
            return
        for sequence in self._scheduler.sequences(request_id):
            if sequence.index == index:
                self._scheduler.end(sequence)

    def step(self, meanwhile: Callable[[], None] | None = None) -> list[Output]:
        """One turn of the loop: starts the next step, then hands out the tokens of the last one.

        With overlap the step just started runs on while the tokens are handed out; without, the
        same step is awaited at once. What a grammar allows next is found out beside the step's
        layers, and its draw is dispatched after that. Where a row can't be planned before its last
        token is known (a beam), the last step's tokens come first: a step that left it out would
        cost more than the pause.

        Args:
            meanwhile: called again and again while the device is busy or grammars are followed; it
                may submit and abort, and should take about a millisecond.
        """
        self._clock.look(bool(self._flights) and self._flights[0].handle.ready)
        outputs = self._admit_compiled()
        with self._guard:
            try:
                if self._flights and self._scheduler.awaits_tokens:
                    outputs += self._hand_out(meanwhile)
                plans = self._plan()
                if len(plans) > 1:
                    self._start_several(plans)
                elif plans:
                    self._start(plans[0], outputs, meanwhile)
                if len(self._flights) > (self._overlap and bool(plans)):
                    outputs += self._hand_out(meanwhile)
            except _StepFailure as failure:
                outputs += self._lose_state(failure)
        if not self.has_work:
            self._clock.rest()
        return outputs

    def _plan(self) -> list[StepPlan]:
        """The next step; several, for one dispatch, if all are sure to decode the same rows."""
        plan, more = self._scheduler.schedule(), self._decode_steps - 1
        if plan is None:
            return []
        several = (
            more > 0
            and not (plan.chunks or plan.copies or self._grammars)
            and self._scheduler.is_steady(more)
            and self._runner.is_settled(plan.decode_slots, 1 + more)
        )
        ahead = [self._scheduler.schedule() for _ in range(more)] if several else []
        return [plan, *(planned for planned in ahead if planned is not None)]

    def _start_several(self, plans: list[StepPlan]) -> None:
        """Starts several steps in one dispatch."""
        self._started = plans
        with _blamed_on_the_step():
            handle = self._runner.dispatch_several(plans)
        self._flights.append(InFlight(plans, handle, self._clock.started()))
        self._started = []

    def _start(
        self, plan: StepPlan, outputs: list[Output], meanwhile: Callable[[], None] | None
    ) -> None:
        """Starts a step. Adds to `outputs` news of the requests it admits, of those that can't go
        on, and, if its draw must know them, of the last step's tokens; they are there even if the
        step fails."""
        self._started = [plan]
        with _blamed_on_the_step():
            started = self._runner.dispatch(plan)
        begin = self._clock.started()
        outputs += _admissions(plan)
        if self._flights and started.awaits_tokens:
            outputs += self._hand_out(meanwhile)
            self._clock.look(started.ready)
        self._runner.mask(started, meanwhile)
        with _blamed_on_the_step():
            handle = self._runner.draw(started)
        self._clock.started()
        self._started = []
        self._flights.append(InFlight([plan], handle, begin))
        outputs += [self._fail(sequence, error) for sequence, error in self._runner.take_failures()]

    def _lose_state(self, failure: _StepFailure) -> list[Output]:
        """After a step that failed as a whole: its KV is lost, and with it all started requests.

        Those that wait go on, with a new state of the device.

        Raises:
            Exception: the cause, when the step's programs fail without any request, too.
        """
        error, plans = failure.error, [plan for flight in self._flights for plan in flight.plans]
        plans, self._started = plans + self._started, []
        lost = self._scheduler.started()
        log.error("a step failed; %d requests are lost with it", len(lost), exc_info=error)
        for request_id in lost:
            self.abort(request_id)
        for plan in plans:
            self._scheduler.update(plan, [0] * (len(plan.decode_slots) + len(plan.chunks)))
        self._flights.clear()
        self._scheduler.reset_prefix_cache()
        self._runner.take_failures()
        try:
            self._runner.reset()
        except Exception:
            log.exception("the step's programs fail without requests, too")
            raise error from None
        reason = f"the step that computed it failed: {error}"
        return [
            Output(request_id, [], error=reason, error_kind=EngineError.__name__)
            for request_id in lost
        ]

    def _admit_compiled(self) -> list[Output]:
        """Requests whose grammar is ready join the scheduler; news of those refused."""
        busy = bool(self._flights) or self._scheduler.has_unfinished
        outputs = []
        for message, compiled in self._grammars.take(0.0 if busy else GRAMMAR_WAIT_S):
            refusal = self._add(message, compiled)
            outputs += [refusal] if refusal else []
        return outputs

    def _hand_out(self, meanwhile: Callable[[], None] | None) -> list[Output]:
        """Awaits the oldest step in flight; news of what it drew."""
        while meanwhile is not None and not self._flights[0].handle.ready:
            meanwhile()
        with _blamed_on_the_step():
            results = self._flights[0].handle.wait()
        done = self._flights.popleft()
        self._clock.ended(done.started, more=bool(self._flights or self._started))
        num_tokens = sum(plan.num_tokens for plan in done.plans)
        self._last_step = (self._clock.step_s, num_tokens)
        outputs, bare = [], {}  # type: list[Output], dict[Sequence, Output]
        for plan, own in zip(done.plans, results, strict=True):
            outputs += self._take(plan, own, bare)
        return outputs + self._beams.select()

    def _take(
        self, plan: StepPlan, results: StepResults, bare: dict[Sequence, Output]
    ) -> list[Output]:
        """News of what a step drew.

        Args:
            bare: outputs with nothing but tokens of the dispatch's steps before: more are put on
                to them.
        """
        result = self._scheduler.update(plan, results.ids)
        outputs = [
            Output(
                span.sequence.request.request_id,
                [],
                prompt_position=span.position,
                prompt_logprobs=entries,
            )
            for span, entries in results.prompt_logprobs
            if span.sequence.finish_reason is None or span.sequence in result.finished
        ]
        particular = results.logprobs.keys() | results.embeddings.keys()
        begins = bool(plan.chunks)  # first tokens come from prompts
        for seq, token in zip(result.sequences, result.token_ids, strict=True):
            if token < 0:
                outputs.append(self._fail(seq, EngineError(NOT_FINITE)))
                continue
            if seq in bare and seq.finish_reason is None:
                bare[seq].token_ids.append(token)
                continue
            first = begins and len(seq.output_token_ids) == 1 and seq.index == 0
            output = Output(
                seq.request.request_id,
                [token],
                seq.finish_reason,
                seq.stop_reason,
                seq.index,
                seq.num_cached_tokens if first else None,
            )
            if seq not in particular:
                outputs.append(output)
                bare[seq] = output
            elif seq.request.payload.params.beam_search is not None:
                self._beams.take(seq, results.logprobs[seq])
            elif seq.request.payload.pool:
                embedding = results.embeddings[seq]
                outputs.append(structs.replace(output, token_ids=[], embedding=embedding))
            else:
                outputs.append(structs.replace(output, logprobs=[results.logprobs[seq]]))
        return outputs

    def _fail(self, sequence: Sequence, error: JaxserveError) -> Output:
        """Ends the request of a sequence that can't go on; others don't notice."""
        for sibling in self._scheduler.sequences(sequence.request.request_id):
            if sibling.output_token_ids and sibling.output_token_ids[-1] < 0:
                sibling.output_token_ids[-1] = 0  # its end may hash it
        self.abort(sequence.request.request_id)
        kind = type(error).__name__
        return Output(sequence.request.request_id, [], error=str(error), error_kind=kind)


def _admissions(plan: StepPlan) -> list[Output]:
    """News of the requests that a plan starts for the first time."""
    now = time.monotonic()
    return [
        Output(
            sequence.request.request_id,
            [],
            queue_s=now - sequence.request.arrival_time,
        )
        for sequence in (start.sequence for start in plan.starts)
        if sequence.index == 0 and not sequence.num_preemptions
    ]


def _refusal(message: Submit, kind: str, error: Exception) -> Output:
    return Output(message.request_id, [], error=str(error), error_kind=kind)
