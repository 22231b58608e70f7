"""Blocks saved by sharing, as in the PagedAttention paper's figure 15: the share of block table
entries that need no block of their own, summed over steps."""

from __future__ import annotations

import random
from pathlib import Path

from jaxserve import LLM, SamplingParams
from jaxserve.bench.datasets import LENGTHS
from jaxserve.sampling.params import BeamSearchParams
from scheduler import Request, Scheduler, SchedulerConfig

TEXTS = Path(__file__).resolve().parents[2]  # its .md files are the beams' prompts


MEANS = {"sharegpt-like": (161, 338), "alpaca-like": (19, 58)}  # tokens, prompt and output


class Saving:
    """Counts blocks after each step."""

    def __init__(self) -> None:
        self._entries = self._used = 0

    def read(self, scheduler: Scheduler, request_ids: list[str]) -> None:
        for request_id in request_ids:
            tables = [table for s in scheduler.sequences(request_id) for table in s.tables]
            self._entries += sum(map(len, tables))
            self._used += len({block for table in tables for block in table})

    @property
    def share(self) -> float:
        return 1 - self._used / self._entries


def parallel_saving(trace: str, samples: int, count: int) -> float:
    """The share saved by `count` requests of so many samples each, run one after another."""
    draws, saving = random.Random(0), Saving()
    config = SchedulerConfig(num_blocks=4096, max_num_seqs=16, enable_prefix_caching=False)
    scheduler = Scheduler(config)
    for number in range(count):
        prompt, output = LENGTHS[trace].draw(draws)
        scheduler.add_request(Request(str(number), [0] * prompt, output, n=samples))
        while scheduler.has_unfinished:
            plan = scheduler.schedule()
            assert plan is not None
            scheduler.update(plan, [0] * (len(plan.decode_slots) + len(plan.chunks)))
            saving.read(scheduler, [str(number)])
    return saving.share


def beam_saving(llm: LLM, trace: str, width: int, count: int) -> float:
    """The share saved by `count` beam searches at once, whose prompts are passages of our
    documents. All have the trace's mean lengths."""
    draws, saving = random.Random(1), Saving()
    prompt, output = MEANS[trace]
    text = "\n".join(p.read_text() for p in sorted((TEXTS / "docs").glob("*.md")))
    ids = llm.tokenizer.encode(text)
    names = []
    for number in range(count):
        start = draws.randrange(len(ids) - prompt)
        params = SamplingParams(
            max_tokens=output, ignore_eos=True, beam_search=BeamSearchParams(beam_width=width)
        )
        names.append(f"{trace}-{width}-{number}")
        llm.core.submit(llm._validator.submission(names[-1], ids[start : start + prompt], params))
    while llm.core.has_work:
        llm.core.step()
        saving.read(llm.core._scheduler, names)
    return saving.share
