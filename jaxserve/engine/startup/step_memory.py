"""What the largest step allocates beside weights, tables and pool: estimated, or measured."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

import jax
import jax.numpy as jnp
from jax.stages import Compiled

from jaxserve.engine.device.buckets import Bucket
from jaxserve.engine.device.step import Step, StepState
from jaxserve.engine.device.step_batch import HostBuffers
from jaxserve.engine.device.step_programs import StepPrograms
from jaxserve.models.config import ModelConfig
from jaxserve.sampling.logit_processors import SamplingTables


def estimate(model: ModelConfig, dtype: jnp.dtype, bucket: Bucket) -> int:
    """Bytes by the shapes alone, for a plan without a GPU: the arrays that are alive at once in the
    widest part of a layer, or in the sampler.

    `make kernels` prints it beside what XLA says of Llama 3.1 8B.
    """
    wide = model.intermediate_size
    if model.moe is not None:
        wide = max(wide, model.moe.experts_per_token * model.moe.intermediate_size)
    # x twice, normed x, and the gated unit's two halves and their product.
    layer = bucket.tokens * (3 * model.hidden_size + 3 * wide) * dtype.itemsize
    # Five arrays of logits in float32: the head's, the processed ones, and those of the draw.
    return max(layer, 5 * bucket.drawn * model.vocab_size * 4)


def table_bytes(rows: int, vocab: int, guess_masks: int = 0) -> int:
    """Bytes of the sampling tables of so many slots, and the spare one.

    Args:
        guess_masks: rows for masks after guesses.
    """
    tables = jax.eval_shape(lambda: SamplingTables.allocate(rows + 1, vocab, guess_masks))
    return sum(table.size * table.dtype.itemsize for table in tables)


def measure(programs: StepPrograms, bucket: Bucket, new_state: Callable[[], StepState]) -> int:
    """Bytes of a step: as XLA declares, or as two calls in a row show on a device that counts,
    whichever is more.

    The calls compute with weights of zeros, so this must run before the real ones are loaded.

    Args:
        new_state: makes a state with a pool of few blocks.
    """
    state = jax.eval_shape(new_state)
    steps, _ = programs.compile_all((bucket,), state, progress=False, stop=Event())
    step = steps[bucket, False]
    return max(_declared_bytes(step), _called_bytes(step, programs, bucket, new_state))


def _declared_bytes(step: Step) -> int:
    """The most that one of a step's programs allocates, and what passes between them."""
    programs = [step.embed, *step.run, step.draw, step.logprobs]
    programs += [program for program in (step.take, step.pool) if program is not None]
    return max(map(_allocated_bytes, programs)) + _allocated_bytes(step.embed)


def _allocated_bytes(program: Compiled) -> int:
    memory = program.memory_analysis()
    assert memory is not None
    new = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return int(memory.temp_size_in_bytes + max(new, 0))


def _called_bytes(
    step: Step, programs: StepPrograms, bucket: Bucket, new_state: Callable[[], StepState]
) -> int:
    """By how much two calls in a row, as the overlapped loop makes them, raise the peak of the
    device's memory; 0 where the device doesn't count, or an earlier peak was higher."""
    device = jax.local_devices()[0]
    zeros = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in programs.model.shapes]
    params, state = programs.model.split_params(zeros), new_state()
    buffers = HostBuffers.allocate(bucket)
    jax.block_until_ready((zeros, state))
    before = device.memory_stats() or {}
    outputs = []
    for _ in range(2):
        state, layers = step.layers(params, state, buffers.ints)
        state, output = step.sample(params, state, layers)
        outputs.append((layers, output))
    jax.block_until_ready(outputs)
    after = device.memory_stats() or {}
    peak = int(after.get("peak_bytes_in_use", 0))
    if peak <= before.get("peak_bytes_in_use", 0):
        return 0
    return peak - int(before["bytes_in_use"])
