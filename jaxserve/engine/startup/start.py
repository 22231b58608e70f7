"""From settings and a checkpoint to a runner that is warm."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event

import jax
import jax.numpy as jnp

from checkpoints import open_checkpoint
from jaxserve.config import EngineConfig, cache_dir
from jaxserve.engine.device.buckets import BucketTable
from jaxserve.engine.device.compilation import checked_files
from jaxserve.engine.device.compilation.traced_programs import TracedPrograms
from jaxserve.engine.device.layer_groups import CPU_SEGMENT_LAYERS, ModelParts
from jaxserve.engine.device.model_outline import ModelOutline, outline
from jaxserve.engine.device.paged_cache import allocate
from jaxserve.engine.device.runner import Runner
from jaxserve.engine.device.slot_table import SlotTable
from jaxserve.engine.device.step import StepPrograms, StepState
from jaxserve.engine.startup import step_memory
from jaxserve.engine.startup.device_info import DeviceInfo, prepare_gpu
from jaxserve.engine.startup.engine_limits import EngineLimits, use_compilation_cache
from jaxserve.engine.startup.loader import load_parameters
from jaxserve.engine.startup.stored_forms import stored_forms
from jaxserve.models.config import ModelConfig
from jaxserve.sampling.logit_processors import SamplingTables

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Started:
    """A warm runner, and what was found out on the way.

    Args:
        vocab: tokens that may be drawn.
        load_s, ready_s: seconds until the parameters were loaded, and until all was ready.
    """

    runner: Runner
    limits: EngineLimits
    model: ModelConfig
    vocab: int
    load_s: float
    ready_s: float


def start(config: EngineConfig, model_path: Path, num_ids: int, progress: bool) -> Started:
    """Loads the parameters while the programs are compiled, then runs both once.

    Args:
        num_ids: ids that the tokenizer has.

    Raises:
        ModelError: the checkpoint can't be served.
        ConfigError: the settings don't fit the model or the machine.
    """
    began, wall = time.monotonic(), time.time()
    compilation_cache = use_compilation_cache()
    prepare_gpu(config.gpu_memory_utilization)
    device = DeviceInfo.here()
    dtype = jnp.dtype(device.dtype(config))
    checkpoint = open_checkpoint(model_path)
    forms = stored_forms(checkpoint, device.keeps_stored(config))
    model = outline(checkpoint.config, dtype, config.max_model_len, forms)
    log.info(
        "weights: %d MB on disk, %d MB in memory", checkpoint.nbytes // 10**6, model.nbytes // 10**6
    )
    vocab = min(model.config.vocab_size, num_ids)
    limits = EngineLimits.resolve(config, model, dtype, device)
    table = BucketTable.build(
        limits.max_num_seqs, limits.max_num_batched_tokens, config.batch_invariant
    )
    if not device.on_cpu and config.kv_cache_memory is None:
        small = replace(limits, num_blocks=len(limits.layout.groups) + 1)
        probe, state = step_programs(small, model, device, vocab), state_maker(small, dtype, vocab)
        measured = step_memory.measure(probe, table.mixed[-1], state)
        limits = EngineLimits.resolve(config, model, dtype, device, measured)
    programs = step_programs(limits, model, device, vocab, config.decode_steps)
    empty_state = state_maker(limits, dtype, vocab)
    pool, given_up = ThreadPoolExecutor(1), Event()
    state = jax.eval_shape(empty_state)
    compiling = pool.submit(programs.compile_all, table.all, state, progress, given_up)
    try:
        params = programs.parts.distribute(load_parameters(checkpoint, model, dtype, progress))
        loaded = time.monotonic()
    except BaseException:
        given_up.set()  # the interpreter's exit waits for what goes on
        raise
    finally:
        pool.shutdown(wait=False)  # a damaged checkpoint is told at once
    steps, copy = compiling.result()
    slots = SlotTable(limits.max_num_seqs)
    runner = Runner(steps, copy, table, params, empty_state, slots)
    # A GPU loads programs and captures command buffers at first use; a CPU has nothing like it.
    runner.warm_up((table.decode[0], table.mixed[0]) if device.on_cpu else table.all)
    checked_files.record(compilation_cache, since=wall)
    return Started(runner, limits, model.config, vocab, loaded - began, time.monotonic() - began)


def step_programs(
    limits: EngineLimits,
    model: ModelOutline,
    device: DeviceInfo,
    vocab: int,
    decode_steps: int = 1,
) -> StepPrograms:
    """The step programs that serve a model under these limits, to be compiled."""
    layers = len(model.cache_specs)
    sizes = CPU_SEGMENT_LAYERS if device.on_cpu else range(layers, layers + 1)
    parts = ModelParts.split(model, limits.layout, sizes)
    # A GPU's kernels are no portable code.
    traced = (
        TracedPrograms(
            cache_dir() / "traced", model.config, model.forms, model.shapes, limits, vocab
        )
        if device.on_cpu
        else None
    )
    return StepPrograms(parts, limits.block_size, vocab, device.on_cpu, decode_steps, traced)


def state_maker(limits: EngineLimits, dtype: jnp.dtype, vocab: int) -> Callable[[], StepState]:
    """What makes an empty state; it can be compiled."""
    width = -(-limits.max_model_len // limits.block_size)

    def new_state() -> StepState:
        rows = limits.max_num_seqs + 1
        pages = allocate(limits.layout.buffers, limits.num_blocks, limits.block_size, dtype)
        return StepState(
            pages,
            jnp.zeros(rows, jnp.int32),
            jnp.zeros((len(limits.layout.groups), rows, width), jnp.int32),
            SamplingTables.allocate(rows, vocab),
        )

    return new_state
