"""From settings and a checkpoint to a runner that is warm."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp

from checkpoints import open_checkpoint
from jaxserve.config import EngineConfig
from jaxserve.engine.buckets import BucketTable
from jaxserve.engine.limits import EngineLimits, use_compilation_cache
from jaxserve.engine.loader import load_parameters, outline
from jaxserve.engine.machine import Machine
from jaxserve.engine.paged_cache import allocate
from jaxserve.engine.runner import Runner
from jaxserve.engine.segments import CPU_SEGMENT_LAYERS, ModelParts
from jaxserve.engine.slots import SlotTable
from jaxserve.engine.step import StepPrograms, StepState
from jaxserve.models.config import ModelConfig
from jaxserve.sampling.processors import SamplingTables


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
    began = time.monotonic()
    use_compilation_cache()
    machine = Machine.here()
    dtype = jnp.dtype(machine.dtype(config))
    checkpoint = open_checkpoint(model_path)
    model = outline(checkpoint.config, dtype, config.max_model_len)
    limits = EngineLimits.resolve(config, model, dtype, machine)
    width = -(-limits.max_model_len // config.block_size)
    table = BucketTable.build(limits.max_num_seqs, limits.max_num_batched_tokens)
    vocab = min(model.config.vocab_size, num_ids)
    layers, groups = len(model.cache_specs), len(limits.layout.groups)
    sizes = CPU_SEGMENT_LAYERS if machine.on_cpu else range(layers, layers + 1)
    parts = ModelParts.split(model, limits.layout, sizes)

    def empty_state() -> StepState:
        rows = limits.max_num_seqs + 1
        pages = allocate(limits.layout.buffers, limits.num_blocks, config.block_size, dtype)
        return StepState(pages, jnp.zeros(rows, jnp.int32), SamplingTables.allocate(rows, vocab))

    programs = StepPrograms(parts, groups, width, vocab, one_by_one=machine.on_cpu)
    pool = ThreadPoolExecutor(1)
    compiling = pool.submit(programs.compile_all, table.all, jax.eval_shape(empty_state), progress)
    try:
        params = parts.distribute(load_parameters(checkpoint, model, dtype, progress))
        loaded = time.monotonic()
    finally:
        pool.shutdown(wait=False)  # a damaged checkpoint is told at once
    steps, copy = compiling.result()
    slots = SlotTable(limits.max_num_seqs, width, groups)
    runner = Runner(steps, copy, table, params, empty_state, slots, config.block_size)
    # A GPU loads programs and captures command buffers at first use; a CPU has nothing like it.
    runner.warm_up((table.decode[0], table.mixed[0]) if machine.on_cpu else table.all)
    return Started(runner, limits, model.config, vocab, loaded - began, time.monotonic() - began)
