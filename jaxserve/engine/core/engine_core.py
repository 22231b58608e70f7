"""EngineCore: the loop around scheduler and runner. Knows no text, no HTTP, no other process."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from jaxserve.config import EngineConfig, named_folder
from jaxserve.engine.core.adapter_folder import AdapterFolder
from jaxserve.engine.core.adapter_queue import AdapterQueue
from jaxserve.engine.core.adapter_store import AdapterStore
from jaxserve.engine.core.beams import Beams, beam_params
from jaxserve.engine.core.grammar_queue import GrammarQueue
from jaxserve.engine.core.protocol import EngineStats, Output, Ready, Submit
from jaxserve.engine.core.speculation.speculation import Speculation, make_proposer
from jaxserve.engine.core.step_clock import StepClock
from jaxserve.engine.core.watch import Watch
from jaxserve.engine.device.adapters.slot_writer import HostAdapter
from jaxserve.engine.device.compilation.compile_guard import CompileGuard
from jaxserve.engine.device.pending_step import PendingStep, StepResults
from jaxserve.engine.device.sampling_state import SamplingRequest
from jaxserve.engine.startup.capacity import describe_cache
from jaxserve.engine.startup.start_runner import start_runner
from jaxserve.errors import (
    ConfigError,
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
    QueueFullError,
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
ADAPTER_WAIT_S = 0.01  # likewise for an adapter to be read
NOT_FINITE = "no token could be drawn: the model's logits weren't finite"


def _grammar_of(message: Submit, compiled: Future[Grammar]) -> Grammar | None:
    """A request's grammar. None if it doesn't compile and the request does without; else raises."""
    wanted = message.params.structured_outputs
    if wanted is not None and wanted.is_optional:
        error = compiled.exception()
        if isinstance(error, InvalidRequestError):
            log.info("request %s goes without its grammar: %s", message.request_id, error)
            return None
    return compiled.result()


class _StepFailedError(Exception):
    """A step failed as a whole, with the state of the device."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def _step_errors() -> Iterator[None]:
    """Turns whatever the runner raises into a _StepFailedError."""
    try:
        yield
    except Exception as error:
        raise _StepFailedError(error) from error


class EngineCore:
    """One model, one scheduler, one runner.

    Args:
        config: the engine's settings.
        model_path: the checkpoint, as checkpoints.pull returned it.
        tokenizer: the checkpoint's, for grammars and to know which tokens exist.
        progress: show progress bars on stderr.

    Raises:
        ModelError: the checkpoint can't be served.
        ConfigError: the settings don't fit the model or the device.
    """

    def __init__(
        self,
        config: EngineConfig,
        model_path: Path,
        tokenizer: Tokenizer,
        progress: bool = False,
    ) -> None:
        if config.lora_folder is not None and not Path(config.lora_folder).is_dir():
            raise ConfigError(f"lora_folder {config.lora_folder} is not a folder")
        started = start_runner(config, model_path, tokenizer.num_ids, progress)
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
                max_queued_requests=config.max_queued_requests,
                cache_groups=limits.layout.groups,
                max_draft_tokens=limits.num_guesses,
                max_draft_step_tokens=started.most_guess_tokens or None,
                max_adapters=config.adapter_slots,
            )
        )
        self.adapters: AdapterStore | None = None
        self.adapter_folder: AdapterFolder | None = None
        self._adapter_queue: AdapterQueue | None = None
        if started.adapters is not None:
            self.adapters = AdapterStore(
                started.adapters.load,
                config.adapters_in_memory,
                lambda: self._scheduler.live_adapters,
            )
            self._adapter_queue = AdapterQueue(self.adapters)
            for name, folder in map(named_folder, config.lora):
                path = Path(folder)
                self.adapters.add(name, path, started.adapters.load(path))
            if config.lora_folder is not None:
                self.adapter_folder = AdapterFolder(Path(config.lora_folder), self.adapters)
                self.adapter_folder.read_all()
        self._beams = Beams(self._scheduler)
        self._grammars = GrammarQueue(tokenizer, self._vocab)
        self._speculation = (
            None
            if config.speculation is None
            else Speculation(
                make_proposer(config.speculation),
                limits.num_guesses,
                config.num_speculative_tokens is None,
                started.most_guess_tokens,
                self._vocab,
            )
        )
        self._decode_steps = config.decode_steps
        self._overlap = config.overlap
        # Oldest first. While step() runs, the draw of the last may not be dispatched yet.
        self._pending: deque[PendingStep] = deque()
        self._clock = StepClock()
        self._last_step: tuple[float | None, int] = (None, 0)  # seconds and tokens, to report
        self.watch: Watch | None = None
        self.ready = Ready(
            max_model_len=limits.max_model_len,
            vocab_size=started.model.vocab_size,
            embedding_size=started.model.hidden_size,
            num_blocks=limits.num_blocks,
            load_s=started.load_s,
            ready_s=started.ready_s,
            cache=describe_cache(limits),
            stats=self.report(),
            max_num_batched_tokens=limits.max_num_batched_tokens,
            max_num_seqs=limits.max_num_seqs,
            windows=tuple(group.window for group in limits.layout.groups),
            adapters=() if self.adapters is None else self.adapters.infos,
            adapter_slots=config.adapter_slots,
        )

    @property
    def compiles(self) -> int:
        """Compilations since the engine was ready; more than 0 is a bug."""
        return self._guard.count

    @property
    def has_work(self) -> bool:
        """Whether step() has anything to do."""
        return bool(self._pending) or self._scheduler.has_unfinished or self._num_elsewhere > 0

    @property
    def _num_elsewhere(self) -> int:
        """Requests that wait for a grammar or an adapter."""
        return len(self._grammars) + len(self._adapter_queue or ())

    @property
    def request_ids(self) -> list[str]:
        """Ids of all requests that haven't ended."""
        queue = self._adapter_queue
        adapters = [] if queue is None else queue.request_ids
        return self._scheduler.request_ids + self._grammars.request_ids + adapters

    @property
    def stats(self) -> SchedulerStats:
        """The scheduler's figures; requests that wait for a grammar or an adapter count as
        waiting."""
        stats = self._scheduler.stats()
        return replace(stats, waiting=stats.waiting + self._num_elsewhere)

    def report(self) -> EngineStats:
        """The figures now, with the last step's unless they were reported before."""
        (seconds, tokens), self._last_step = self._last_step, (None, 0)
        oldest = self._pending[0] if self._pending and self._pending[0].is_drawn else None
        busy_s = time.monotonic() - oldest.dispatched_at if oldest else 0.0
        guesses = None if self._speculation is None else self._speculation.stats()
        return EngineStats(
            self.stats, self.compiles, self._clock.idle_s, seconds, tokens, busy_s, guesses
        )

    def prepare_grammars(self) -> None:
        """Builds what all grammars need, which would otherwise stop the loop for a while when the
        first one comes."""
        self._grammars.prepare()

    def reset_prefix_cache(self) -> bool:
        """Empties the prefix cache; refused (False) while any request holds blocks."""
        return self._scheduler.reset_prefix_cache()

    def set_watch(self, on: bool) -> None:
        """Starts to record what the engine does, anew if it is recorded already; or stops it."""
        if self.watch is not None:
            self.watch.close()
        self.watch = Watch(self._scheduler.watch()) if on else None

    def close(self) -> None:
        """Stops the threads, and removes what is registered with jax."""
        self._guard.close()
        self._grammars.close()
        if self.adapters is not None:
            self.adapters.close()
        if self.adapter_folder is not None:
            self.adapter_folder.close()

    def submit(self, message: Submit) -> Output | None:
        """Registers a request. Returns an Output only if it is refused at once."""
        try:
            self._scheduler.check_queue(self._num_elsewhere)
        except QueueFullError as error:
            return _error_output(message.request_id, OverloadedError.__name__, error)
        if message.adapter is not None:
            try:
                self._known_adapter(message.adapter)
            except InvalidRequestError as error:
                return _error_output(message.request_id, InvalidRequestError.__name__, error)
        if message.params.structured_outputs is None:
            return self._add(message, None)
        grammar = self._grammars.put(message)
        return None if grammar is None else self._add(message, grammar)

    def _known_adapter(self, name: str) -> None:
        """Raises InvalidRequestError for an adapter that isn't known."""
        if self.adapters is None:
            raise InvalidRequestError(
                f"there is no adapter {name!r}: the engine was started without adapters", "model"
            )
        self.adapters.find(name)

    def _add(
        self,
        message: Submit,
        compiled: Future[Grammar] | None,
        adapter: HostAdapter | None = None,
    ) -> Output | None:
        """Adds a request to the scheduler, or to those that wait for their adapter. Returns an
        Output only if that fails.

        Args:
            compiled: its grammar, if it has one; done.
            adapter: its adapter, if it has waited for it.
        """
        try:
            if message.adapter is not None and adapter is None:
                assert self._adapter_queue is not None
                adapter = self._adapter_queue.put(message, compiled)
                if adapter is None:
                    return None
            grammar = None if compiled is None else _grammar_of(message, compiled)
            self._register(message, grammar, adapter)
        except (InvalidRequestError, RequestTooLongError) as error:
            return _error_output(message.request_id, "InvalidRequestError", error)
        except UnprocessableError as error:
            return _error_output(message.request_id, UnprocessableError.__name__, error)
        except OverloadedError as error:
            return _error_output(message.request_id, OverloadedError.__name__, error)
        except Exception as error:  # whatever it is, the other requests go on
            log.exception("request %s can't be added", message.request_id)
            self.abort(message.request_id)
            return _error_output(message.request_id, EngineError.__name__, error)
        return None

    def _register(
        self, message: Submit, grammar: Grammar | None, adapter: HostAdapter | None
    ) -> None:
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
            # A grammar's masks keep to min_tokens, unless the output can't go on.
            min_tokens=params.min_tokens if grammar is None else 0,
            priority=message.priority,
            arrival_time=time.monotonic(),
            cache_salt=message.cache_salt,
            payload=SamplingRequest(
                beam_params(params) if searches else params,
                masks,
                message.pool,
                tuple(message.prediction),
                adapter,
            ),
            n=1 if searches else params.n,
            adapter=None if adapter is None else adapter.digest,
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
            if self._adapter_queue is not None:
                self._adapter_queue.cancel(request_id)
            self._beams.drop(request_id)
            self._scheduler.abort(request_id)
            return
        for sequence in self._scheduler.sequences(request_id):
            if sequence.index == index:
                self._scheduler.end(sequence)

    def step(self, meanwhile: Callable[[], None] | None = None) -> list[Output]:
        """One turn of the loop: dispatches the next step, then reads the results of the last one.

        With overlap, the step just dispatched runs while the results of the one before are read and
        returned; without, its own results are waited for. The masks of a grammar are computed while
        the device computes the step's layers, and the draw is dispatched after that. Where a row
        can't be planned before its last token is known (a beam, or a sequence whose guesses the
        step verifies), the last step's results are read first: to leave the row out of a step would
        cost more than the pause.

        Args:
            meanwhile: called again and again while the device computes or masks are; it may submit
                and abort requests, and should take about a millisecond.
        """
        self._clock.observe(bool(self._pending) and self._pending[0].is_done)
        outputs = self._add_compiled() + self._add_adapted()
        with self._guard:
            try:
                if self._pending and self._awaits_tokens():
                    outputs += self._read_oldest(meanwhile)
                planned_at = time.monotonic()
                if self._speculation is not None and not self._pending:
                    self._speculation.draft(self._scheduler)
                plans = self._plan()
                if plans:
                    step = self._dispatch(plans)
                    step.planned_at = planned_at
                    outputs += _admissions(plans[0])
                    if step.awaits_tokens and len(self._pending) > 1:
                        outputs += self._read_oldest(meanwhile)
                        self._clock.observe(step.are_layers_done)
                    if not step.is_drawn:
                        outputs += self._draw(step, meanwhile)
                if len(self._pending) > (self._overlap and bool(plans)):
                    outputs += self._read_oldest(meanwhile)
            except _StepFailedError as failure:
                outputs += self._lose_state(failure)
        if not self.has_work:
            self._clock.pause()
        return outputs

    def _awaits_tokens(self) -> bool:
        """Whether the tokens of the step in flight are needed to plan the next one well."""
        if self._scheduler.awaits_tokens:
            return True
        return self._speculation is not None and self._speculation.wants_tokens(self._scheduler)

    def _plan(self) -> list[StepPlan]:
        """The next step. Several, for one dispatch, if all are sure to decode the same rows."""
        plan, more = self._scheduler.schedule(), self._decode_steps - 1
        if plan is None:
            return []
        if self.watch is not None:
            self.watch.planned(plan)
        several = (
            more > 0
            and not (plan.chunks or plan.copies or self._num_elsewhere)
            and self._scheduler.is_steady(more)
            and self._runner.is_settled(plan.decode_slots, 1 + more)
        )
        ahead = [self._scheduler.schedule() for _ in range(more)] if several else []
        return [plan, *(planned for planned in ahead if planned is not None)]

    def _dispatch(self, plans: list[StepPlan]) -> PendingStep:
        """Dispatches the layers of a step, or several steps as a whole."""
        step = PendingStep(plans)
        self._pending.append(step)  # first: after a failure its plans must be known
        with _step_errors():
            if len(plans) > 1:
                self._runner.dispatch_several(step)
            else:
                self._runner.dispatch(step)
        gap_s = self._clock.idle_s
        step.dispatched_at = self._clock.dispatched()
        if self._speculation is not None and len(self._pending) == 1:
            self._speculation.times.add_gap(self._clock.idle_s - gap_s)
        return step

    def _draw(self, step: PendingStep, meanwhile: Callable[[], None] | None) -> list[Output]:
        """Dispatches the draw of a step. Returns the errors of requests whose masks failed."""
        self._runner.mask(step, meanwhile)
        with _step_errors():
            self._runner.draw(step)
        self._clock.dispatched()
        return [self._fail(sequence, error) for sequence, error in self._runner.take_failures()]

    def _lose_state(self, failure: _StepFailedError) -> list[Output]:
        """Ends all running requests after a step that failed as a whole: their KV is lost with it.

        Requests that wait go on, with an empty state of the device.

        Raises:
            Exception: the cause, if the step's programs fail even without requests.
        """
        error, plans = failure.error, [plan for step in self._pending for plan in step.plans]
        lost = self._scheduler.started()
        log.error("a step failed; %d requests are lost with it", len(lost), exc_info=error)
        for request_id in lost:
            self.abort(request_id)
        for plan in plans:
            rows = len(plan.decode_slots) + len(plan.chunks)
            self._scheduler.update(plan, [0] * rows, [[0]] * len(plan.drafts))
        self._pending.clear()
        if self.watch is not None:
            self.watch.lost()
        self._scheduler.reset_prefix_cache()
        self._scheduler.forget_adapters()
        self._runner.take_failures()
        try:
            self._runner.reset()
        except Exception:
            log.exception("the step's programs fail even without requests")
            raise error from None
        reason = f"the step that computed it failed: {error}"
        return [
            Output(request_id, [], error=reason, error_kind=EngineError.__name__)
            for request_id in lost
        ]

    def _add_compiled(self) -> list[Output]:
        """Adds the requests whose grammar is compiled to the scheduler; the outputs of those that
        are refused."""
        busy = bool(self._pending) or self._scheduler.has_unfinished
        outputs = []
        for message, compiled in self._grammars.take(0.0 if busy else GRAMMAR_WAIT_S):
            refusal = self._add(message, compiled)
            outputs += [refusal] if refusal else []
        return outputs

    def _add_adapted(self) -> list[Output]:
        """Adds the requests whose adapter is in memory by now to the scheduler; the outputs of
        those that are refused."""
        if self._adapter_queue is None:
            return []
        busy = bool(self._pending) or self._scheduler.has_unfinished or len(self._grammars) > 0
        outputs = []
        for waiting, found in self._adapter_queue.take(0.0 if busy else ADAPTER_WAIT_S):
            message = waiting.message
            if isinstance(found, EngineError):
                outputs.append(_error_output(message.request_id, EngineError.__name__, found))
            elif refusal := self._add(message, waiting.grammar, found):
                outputs.append(refusal)
        return outputs

    def _read_oldest(self, meanwhile: Callable[[], None] | None) -> list[Output]:
        """Waits for the oldest pending step; the outputs of what it drew."""
        step = self._pending[0]
        while meanwhile is not None and not step.is_done:
            meanwhile()
        with _step_errors():
            results = step.wait()
        self._runner.count_taken(step, results)
        self._pending.popleft()
        self._clock.ended(step.dispatched_at, has_more=bool(self._pending))
        self._last_step = (self._clock.step_s, step.num_tokens)
        read_at = time.monotonic()
        outputs, growing = [], {}  # type: list[Output], dict[Sequence, Output]
        for plan, own in zip(step.plans, results, strict=True):
            outputs += self._outputs_of(plan, own, growing)
        if self._speculation is not None:
            self._measure(self._speculation, step, results)
        outputs += self._beams.select()
        if self.watch is not None:
            host_s = step.dispatched_at - step.planned_at + time.monotonic() - read_at
            self.watch.ended(step.plans, step.bucket.tokens, self._clock.step_s, host_s)
        return outputs

    def _measure(
        self, speculation: Speculation, step: PendingStep, results: list[StepResults]
    ) -> None:
        """Tells what a step's guesses brought, and how long a step without prompts took."""
        if step.verify is not None:
            speculation.verified(step.plans[0], results[0].drafted)
        if not step.plans[0].chunks:
            speculation.times.add(step.plans[0].num_tokens, self._clock.step_s)

    def _outputs_of(
        self, plan: StepPlan, results: StepResults, growing: dict[Sequence, Output]
    ) -> list[Output]:
        """Updates the scheduler with the results of a plan; the outputs of what it drew.

        Args:
            growing: outputs with nothing but tokens, of the plans before in the same dispatch. A
                further token is appended to them.
        """
        result = self._scheduler.update(plan, results.ids, results.drafted)
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
        with_extras = results.logprobs.keys() | results.embeddings.keys()
        has_chunks = bool(plan.chunks)  # only a prompt's last chunk draws a first token
        drafted: dict[Sequence, list[int]] = {}
        for seq, token in zip(result.sequences, result.token_ids, strict=True):
            if token < 0:
                outputs.append(self._fail(seq, EngineError(NOT_FINITE)))
                continue
            if seq in results.verified:
                drafted.setdefault(seq, []).append(token)
                continue
            if seq in growing and seq.finish_reason is None:
                growing[seq].token_ids.append(token)
                continue
            first = has_chunks and len(seq.output_token_ids) == 1 and seq.index == 0
            output = Output(
                seq.request.request_id,
                [token],
                seq.finish_reason,
                seq.stop_reason,
                seq.index,
                seq.num_cached_tokens if first else None,
            )
            if seq not in with_extras:
                outputs.append(output)
                growing[seq] = output
            elif seq.request.payload.params.beam_search is not None:
                self._beams.add_likeliest(seq, results.logprobs[seq][0])
            elif seq.request.payload.pool:
                embedding = results.embeddings[seq]
                outputs.append(structs.replace(output, token_ids=[], embedding=embedding))
            else:
                outputs.append(structs.replace(output, logprobs=results.logprobs[seq]))
        return outputs + [_drafted_output(seq, ids, results) for seq, ids in drafted.items()]

    def _fail(self, sequence: Sequence, error: JaxserveError) -> Output:
        """Ends the request of a sequence that can't go on; its output, with the error."""
        for sibling in self._scheduler.sequences(sequence.request.request_id):
            if sibling.output_token_ids and sibling.output_token_ids[-1] < 0:
                sibling.output_token_ids[-1] = 0  # as its end may hash the token
        self.abort(sequence.request.request_id)
        return _error_output(sequence.request.request_id, type(error).__name__, error)


def _drafted_output(sequence: Sequence, token_ids: list[int], results: StepResults) -> Output:
    """The output of a sequence whose guesses were verified.

    Args:
        token_ids: those that it got; fewer than were taken, if it ended among them.
    """
    taken, guesses = results.verified[sequence]
    accepted = min(taken, len(token_ids))
    logprobs = results.logprobs.get(sequence)
    return Output(
        sequence.request.request_id,
        token_ids,
        sequence.finish_reason,
        sequence.stop_reason,
        sequence.index,
        logprobs=None if logprobs is None else logprobs[: len(token_ids)],
        accepted_guesses=accepted,
        rejected_guesses=guesses - accepted,
    )


def _admissions(plan: StepPlan) -> list[Output]:
    """For each request that a plan starts for the first time, an output with its queue time."""
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


def _error_output(request_id: str, kind: str, error: Exception) -> Output:
    param = error.param if isinstance(error, InvalidRequestError) else None
    return Output(request_id, [], error=str(error), error_kind=kind, error_param=param)
