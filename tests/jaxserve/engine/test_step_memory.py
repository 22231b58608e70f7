"""The pool is updated in place: no step copies it."""

from __future__ import annotations

from jaxserve.engine.llm import LLM


def test_no_step_copies_the_pool(llm: LLM) -> None:
    runner = llm.core._runner
    pool = sum(array.nbytes for buffer in runner._state.pages for array in buffer)
    assert pool > 2**19
    for step in runner._steps.values():
        for segment, program in zip(step.segments, step.run, strict=True):
            own = sum(a.nbytes for buffer in segment.of(runner._state.pages) for a in buffer)
            memory = program.memory_analysis()
            assert memory.alias_size_in_bytes >= own
            assert memory.temp_size_in_bytes < own / 4
