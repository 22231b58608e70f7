"""bench.twin without torch: its recorded steps, replayed, give transformers' tokens. It is in this
folder for the fixture of the tiny engine."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from bench.twin.ours import OurRunner, by_slot
from bench.twin.record import Recorder
from bench.twin.trace import load, save
from jaxserve.engine.frontend.llm import LLM


def test_a_recorded_trace_is_what_the_engine_would_have_run(
    llm: LLM, prompts: list[list[int]], tiny_llama_golden: dict[str, Any], tmp_path: Path
) -> None:
    answers = [tiny_llama_golden[f"greedy_{i}"].tolist() for i in range(len(prompts))]
    work = [(ids, len(answer)) for ids, answer in zip(prompts, answers, strict=True)]
    recorded = Recorder(llm).trace(work)
    replay = OurRunner(llm).replay(recorded, 2)
    steps = [step.packed(ids) for step, ids in zip(recorded, replay.ids, strict=True)]
    assert by_slot(steps) == sorted(answers)

    save(tmp_path / "plans.npz", {"trace": steps, "more": steps[:1]})
    loaded = load(tmp_path / "plans.npz")
    assert list(loaded) == ["trace", "more"]
    for step, again in zip(steps, loaded["trace"], strict=True):
        assert all(map(np.array_equal, step, again))


def test_decode_steps_are_recorded_at_their_context(llm: LLM) -> None:
    recorded = Recorder(llm).decode(3, 20, 4)
    contexts = [step.packed(np.zeros(3)).context_lens for step in recorded]
    assert all((lens >= 20).all() and (lens < 26).all() for lens in contexts)
    assert all((b == a + 1).all() for a, b in pairwise(contexts))
    assert not llm.core.has_work
