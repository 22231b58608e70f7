"""EngineCore: schedules, runs, and hands tokens out. Knows no text, no HTTP, no other process."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import jax.numpy as jnp

from jaxserve.config import EngineConfig
from jaxserve.engine.buckets import BucketTable
from jaxserve.engine.compile_guard import CompileGuard
from jaxserve.engine.limits import EngineLimits, resolve_dtype, use_compilation_cache
from jaxserve.engine.loader import load_model
from jaxserve.engine.messages import Output, Ready, Submit
from jaxserve.engine.paged_cache import allocate
from jaxserve.engine.runner import Runner, StepHandle
from jaxserve.engine.slots import SlotTable
from jaxserve.engine.step import StepProgram
from scheduler import (
    QueueFullError,
    Request,
    RequestTooLongError,
    Scheduler,
    SchedulerConfig,
    SchedulerStats,
    StepPlan,
)


@dataclass(frozen=True, slots=True)
class InFlight:
    """A plan and the device's answer to come."""

    plan: StepPlan
    handle: StepHandle


class EngineCore:
    """One model, one scheduler, one runner.

    Args:
        config: the engine's settings.
        model_path: the checkpoint, as checkpoints.pull returned it.
        progress: show progress bars on stderr.

    Raises:
        ModelError: the checkpoint can't be served.
        ConfigError: the settings don't fit the model or the machine.
    """

    def __init__(self, config: EngineConfig, model_path: Path, progress: bool = False) -> None:
        use_compilation_cache()
        started = time.monotonic()
        dtype = resolve_dtype(config)
        model = load_model(model_path, dtype, progress, config.max_model_len)
        loaded = time.monotonic()
        limits = EngineLimits.resolve(config, model, dtype)
        width = -(-limits.max_model_len // config.block_size)
        table = BucketTable.build(limits.max_num_seqs, limits.max_num_batched_tokens)
        pages = allocate(model.cache_specs, limits.num_blocks, config.block_size, dtype)
        last_tokens = jnp.zeros(limits.max_num_seqs + 1, jnp.int32)
        self._guard = CompileGuard(config.forbid_compile)
        program = StepProgram(model.graphdef, model.structure, width)
        steps = program.compile_all(table.all, model.leaves, pages, last_tokens, progress)
        slots = SlotTable(limits.max_num_seqs, width)
        self._runner = Runner(
            steps, table, model.leaves, pages, last_tokens, slots, config.block_size
        )
        self._runner.warm_up()
        self._scheduler = Scheduler(
            SchedulerConfig(
                num_blocks=limits.num_blocks,
                block_size=config.block_size,
                max_num_seqs=limits.max_num_seqs,
                max_num_batched_tokens=limits.max_num_batched_tokens,
                max_model_len=limits.max_model_len,
                enable_prefix_caching=config.enable_prefix_caching,
            )
        )
        self._overlap = config.overlap
        self._in_flight: InFlight | None = None
        self.ready = Ready(
            max_model_len=limits.max_model_len,
            vocab_size=model.config.vocab_size,
            num_blocks=limits.num_blocks,
            load_s=loaded - started,
            compile_s=time.monotonic() - loaded,
        )

    @property
    def compiles(self) -> int:
        """Compilations since ready; anything but 0 is a fault."""
        return self._guard.count

    @property
    def has_work(self) -> bool:
        """Whether step() has anything to do."""
        return self._in_flight is not None or self._scheduler.has_unfinished

    @property
    def stats(self) -> SchedulerStats:
        """Running, waiting, blocks, hits, preemptions."""
        return self._scheduler.stats()

    def close(self) -> None:
        """Lets go of process-wide hooks."""
        self._guard.close()

    def submit(self, message: Submit) -> Output | None:
        """Registers a request; an Output only if it was refused."""
        max_tokens = message.params.max_tokens
        assert max_tokens is not None
        request = Request(
            request_id=message.request_id,
            prompt_token_ids=message.prompt_token_ids,
            max_tokens=max_tokens,
            stop_token_ids=message.stop_token_ids,
            arrival_time=time.monotonic(),
            payload=message.params,
        )
        try:
            self._scheduler.add_request(request)
        except RequestTooLongError as error:
            return _refusal(message, "InvalidRequestError", error)
        except QueueFullError as error:
            return _refusal(message, "OverloadedError", error)
        return None

    def abort(self, request_id: str) -> None:
        """Ends a request and frees its blocks; unknown ids are ignored."""
        self._scheduler.abort(request_id)

    def step(self) -> list[Output]:
        """One turn of the loop: starts the next step, then hands out the tokens of the last one.

        With overlap the step just started runs on while the tokens are handed out; without, the
        same step is awaited at once.
        """
        with self._guard:
            plan = self._scheduler.schedule()
            started = InFlight(plan, self._runner.dispatch(plan)) if plan is not None else None
            if self._overlap:
                done, self._in_flight = self._in_flight, started
            else:
                done = started
            return self._hand_out(done) if done is not None else []

    def _hand_out(self, done: InFlight) -> list[Output]:
        result = self._scheduler.update(done.plan, done.handle.wait())
        return [
            Output(seq.request.request_id, [token], seq.finish_reason, seq.stop_reason)
            for seq, token in zip(result.sequences, result.token_ids, strict=True)
        ]


def _refusal(message: Submit, kind: str, error: Exception) -> Output:
    return Output(message.request_id, [], error=str(error), error_kind=kind)
