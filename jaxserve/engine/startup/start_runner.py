"""Starts a runner: loads the model while its programs are compiled, and warms both up."""

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
from jaxserve.engine.device.adapters.adapter_layout import AdapterLayout
from jaxserve.engine.device.adapters.slot_writer import SlotWriter
from jaxserve.engine.device.buckets import BucketTable, guess_masks
from jaxserve.engine.device.compilation import checked_files
from jaxserve.engine.device.compilation.compilation_cache import use_compilation_cache
from jaxserve.engine.device.compilation.traced_programs import TracedPrograms
from jaxserve.engine.device.layer_groups import CPU_GROUP_LAYERS, SplitModel
from jaxserve.engine.device.model_outline import ModelOutline
from jaxserve.engine.device.paged_cache import allocate
from jaxserve.engine.device.runner import Runner
from jaxserve.engine.device.slot_table import SlotTable
from jaxserve.engine.device.step import StepState
from jaxserve.engine.device.step_programs import StepPrograms
from jaxserve.engine.startup import step_memory
from jaxserve.engine.startup.adapter_loading import AdapterLoader, adapter_layout
from jaxserve.engine.startup.cpu_threads import limit_xla_threads, use_threads
from jaxserve.engine.startup.device_choice import choose_device
from jaxserve.engine.startup.device_info import DeviceInfo, check_jax_settings, prepare_gpu
from jaxserve.engine.startup.engine_limits import EngineLimits
from jaxserve.engine.startup.loader import load_parameters
from jaxserve.engine.startup.stored_forms import planned_model
from jaxserve.models.config import ModelConfig
from jaxserve.sampling.logit_processors import SamplingTables

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StartedRunner:
    """A runner that is warm, and what it was started with.

    Args:
        vocab: tokens that may be drawn.
        most_guess_tokens: see BucketTable.
        adapters: reads adapters; None without slots for them.
        load_s, ready_s: seconds until the parameters were loaded, and until all was ready.
    """

    runner: Runner
    limits: EngineLimits
    model: ModelConfig
    vocab: int
    most_guess_tokens: int
    adapters: AdapterLoader | None
    load_s: float
    ready_s: float


def start_runner(
    config: EngineConfig, model_path: Path, num_ids: int, progress: bool
) -> StartedRunner:
    """Loads the parameters while the programs are compiled, then runs the programs once.

    Args:
        num_ids: ids that the tokenizer has.

    Raises:
        ModelError: the checkpoint can't be served.
        ConfigError: the settings don't fit the model or the device.
    """
    began, began_wall = time.monotonic(), time.time()
    check_jax_settings()
    compilation_cache = use_compilation_cache()
    prepare_gpu(config.gpu_memory_utilization)
    limit_xla_threads(config)
    choose_device(config.device)
    device = DeviceInfo.here(config)
    if device.on_cpu:
        use_threads(config)
    dtype = jnp.dtype(device.dtype(config))
    checkpoint = open_checkpoint(model_path, config.quantization)
    if unknown := checkpoint.config.unknown_fields:
        log.warning(
            "config.json: nothing reads these fields of %s: %s",
            *(checkpoint.config.architecture, ", ".join(unknown)),
        )
    model = planned_model(config, checkpoint, device)
    log.info(
        "weights: %d MB on disk, %d MB in memory", checkpoint.nbytes // 10**6, model.nbytes // 10**6
    )
    vocab = min(model.config.vocab_size, num_ids)
    adapters = adapter_layout(config, model, dtype, device.on_cpu)
    taken = 0 if adapters is None else adapters.nbytes
    limits = EngineLimits.resolve(config, model, dtype, device, adapter_bytes=taken)
    table = BucketTable.build(
        limits.max_num_seqs, limits.max_num_batched_tokens, limits.num_guesses
    )
    if not device.on_cpu and config.kv_cache_memory is None:
        small = replace(limits, num_blocks=len(limits.layout.groups) + 1)
        probe, state = step_programs(small, model, device, vocab), state_maker(small, vocab)
        measured = step_memory.measure(probe, table.mixed[-1], state)
        limits = EngineLimits.resolve(config, model, dtype, device, measured, taken)
    programs = step_programs(limits, model, device, vocab, config.decode_steps, adapters)
    new_state = state_maker(limits, vocab)
    pool, stop_compiling = ThreadPoolExecutor(1), Event()
    state = jax.eval_shape(new_state)
    compiling = pool.submit(programs.compile_all, table.all, state, progress, stop_compiling)
    try:
        leaves = load_parameters(checkpoint, model, dtype, progress)
        params = programs.model.split_params(leaves)
        loaded = time.monotonic()
    except BaseException:
        stop_compiling.set()  # or the interpreter would wait for it when it exits
        raise
    finally:
        pool.shutdown(wait=False)  # the error of a damaged checkpoint doesn't wait for compiling
    steps, copy = compiling.result()
    slots = SlotTable(limits.max_num_seqs, config.adapter_slots)
    groups = programs.model.groups
    writer = None if adapters is None else SlotWriter(adapters, groups, params)
    runner = Runner(steps, copy, table, params, new_state, slots, writer)
    # A GPU loads programs and captures command buffers at first use; a CPU does neither.
    runner.warm_up((table.decode[0], table.mixed[0]) if device.on_cpu else table.all)
    checked_files.record(compilation_cache, since=began_wall)
    now = time.monotonic()
    loader = None
    if adapters is not None:
        loader = AdapterLoader(config, checkpoint, model, adapters, groups)
    return StartedRunner(
        runner,
        limits,
        model.config,
        vocab,
        table.most_guess_tokens,
        loader,
        loaded - began,
        now - began,
    )


def step_programs(
    limits: EngineLimits,
    model: ModelOutline,
    device: DeviceInfo,
    vocab: int,
    decode_steps: int = 1,
    adapters: AdapterLayout | None = None,
) -> StepPrograms:
    """The programs that serve a model under these limits, not yet compiled."""
    layers = len(model.cache_specs)
    sizes = CPU_GROUP_LAYERS if device.on_cpu else range(layers, layers + 1)
    split = SplitModel.split(model, limits.layout, sizes)
    # Programs with GPU kernels can't be exported, so they are traced at every start.
    traced = (
        TracedPrograms(
            cache_dir() / "traced", model.config, model.forms, model.shapes, limits, vocab
        )
        if device.on_cpu
        else None
    )
    return StepPrograms(
        split, limits.block_size, vocab, device.on_cpu, decode_steps, traced, adapters
    )


def state_maker(limits: EngineLimits, vocab: int) -> Callable[[], StepState]:
    """A function that makes an empty state; it can be compiled."""
    width = -(-limits.max_model_len // limits.block_size)

    def new_state() -> StepState:
        rows = limits.max_num_seqs + 1
        kv_dtype = jnp.dtype(limits.kv_dtype)
        pages = allocate(limits.layout.buffers, limits.num_blocks, limits.block_size, kv_dtype)
        return StepState(
            pages,
            jnp.zeros(rows, jnp.int32),
            jnp.zeros((len(limits.layout.groups), rows, width), jnp.int32),
            SamplingTables.allocate(
                rows, vocab, guess_masks(limits.max_num_seqs, limits.num_guesses > 0)
            ),
        )

    return new_state
