"""What the largest step allocates beside weights, tables and pool: by its shapes, or measured."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event

import jax
import jax.numpy as jnp
from jax.stages import Compiled

from jaxserve.engine.device.buckets import Bucket
from jaxserve.engine.device.runner import HostBuffers
from jaxserve.engine.device.step import Step, StepPrograms, StepState
from jaxserve.models.config import ModelConfig
from jaxserve.sampling.logit_processors import SamplingTables


def estimate(model: ModelConfig, dtype: jnp.dtype, bucket: Bucket) -> int:
    """Bytes by the shapes alone, for a plan without a GPU: what lives at once in the widest place
    of a layer, or in the sampler.

    `make kernels` prints it beside what XLA says of Llama 3.1 8B.
    """
    wide = model.intermediate_size
    if model.moe is not None:
        wide = max(wide, model.moe.experts_per_token * model.moe.intermediate_size)
    # x twice, normed x, and the gated unit's two halves and their product.
    layer = bucket.tokens * (3 * model.hidden_size + 3 * wide) * dtype.itemsize
    # Logits in float32: as the head gives them, processed, and their weights and bits in a draw.
    return max(layer, 5 * bucket.drawn * model.vocab_size * 4)


def table_bytes(rows: int, vocab: int) -> int:
    """Bytes of the sampling tables of so many slots, and the spare one."""
    tables = jax.eval_shape(lambda: SamplingTables.allocate(rows + 1, vocab))
    return sum(table.size * table.dtype.itemsize for table in tables)


def measure(programs: StepPrograms, bucket: Bucket, new_state: Callable[[], StepState]) -> int:
    """Bytes of a step as XLA says and, where the device counts, as two real calls in a row show.

    The calls compute with weights of zeros, so this comes before the real ones are loaded.

    Args:
        new_state: makes a state with a pool of few blocks.
    """
    state = jax.eval_shape(new_state)
    steps, _ = programs.compile_all((bucket,), state, progress=False, given_up=Event())
    step = steps[bucket]
    return max(_declared(step), _called(step, programs, bucket, new_state))


def _declared(step: Step) -> int:
    """Most that one of a step's programs allocates, and what goes from one to the next."""
    one_by_one = [step.embed, *step.run, step.draw, step.logprobs]
    one_by_one += [program for program in (step.take, step.pool) if program is not None]
    return max(map(_allocated, one_by_one)) + _allocated(step.embed)


def _allocated(program: Compiled) -> int:
    memory = program.memory_analysis()
    assert memory is not None
    new = memory.output_size_in_bytes - memory.alias_size_in_bytes
    return int(memory.temp_size_in_bytes + max(new, 0))


def _called(
    step: Step, programs: StepPrograms, bucket: Bucket, new_state: Callable[[], StepState]
) -> int:
    """By how much two calls in a row, as the overlapped loop makes them, raise the device's peak;
    0 where the device doesn't count, or an earlier peak hides it."""
    device = jax.local_devices()[0]
    zeros = [jnp.zeros(leaf.shape, leaf.dtype) for leaf in programs.parts.shapes]
    params, state = programs.parts.distribute(zeros), new_state()
    buffers = HostBuffers.allocate(bucket)
    jax.block_until_ready((zeros, state))
    before = device.memory_stats() or {}
    outputs = []
    for _ in range(2):
        state, x, rows, draws = step.layers(params, state, buffers.ints)
        state, output = step.sample(params, state, rows, draws)
        outputs.append((x, rows, output))
    jax.block_until_ready(outputs)
    after = device.memory_stats() or {}
    peak = int(after.get("peak_bytes_in_use", 0))
    if peak <= before.get("peak_bytes_in_use", 0):
        return 0
    return peak - int(before["bytes_in_use"])
