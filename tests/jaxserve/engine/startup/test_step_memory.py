"""The pool is updated in place: no step copies it."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from checkpoints import open_checkpoint
from jaxserve.config import EngineConfig
from jaxserve.engine.device.compilation.compile_jobs import trace
from jaxserve.engine.device.model_outline import outline
from jaxserve.engine.frontend.llm import LLM
from jaxserve.engine.startup.device_info import DeviceInfo
from jaxserve.engine.startup.engine_limits import EngineLimits
from jaxserve.engine.startup.start_runner import state_maker, step_programs


def test_no_step_copies_the_pool(llm: LLM) -> None:
    runner = llm.core._runner
    pool = sum(array.nbytes for buffer in runner._state.pages for array in buffer)
    assert pool > 2**19
    for step in runner._steps.values():
        for group, program in zip(step.groups, step.run, strict=True):
            own = sum(a.nbytes for buffer in group.select(runner._state.pages) for a in buffer)
            memory = program.memory_analysis()
            assert memory.alias_size_in_bytes >= own
            assert memory.temp_size_in_bytes < own / 4


@pytest.mark.slow
def test_several_decode_steps_do_not_copy_the_pool(llm: LLM, tiny_llama: Path) -> None:
    pool, steps, vocab, dtype = 2**22, 3, llm.core._vocab, jnp.dtype("float32")
    config = EngineConfig(str(tiny_llama), max_num_seqs=8, kv_cache_memory=pool)
    device, model = (
        DeviceInfo.here(config),
        outline(open_checkpoint(tiny_llama).config, dtype, None),
    )
    limits = EngineLimits.resolve(config, model, dtype, device)
    programs = step_programs(limits, model, device, vocab, steps)
    state = jax.eval_shape(state_maker(limits, vocab))
    bucket = llm.core._runner._table.decode[-1]
    job = programs.jobs(bucket, state)["repeat", bucket, steps]
    memory = trace("", job).compile().memory_analysis()
    assert memory is not None
    assert memory.alias_size_in_bytes >= pool
    assert memory.temp_size_in_bytes < pool / 4
