"""The loads of bench/engine/throughput.py and their figures, the same code for every engine.

A peer's script reads one Job as JSON from stdin, and prints a line of JSON with the figures of each
load as soon as it has them.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

OnToken = Callable[[int], None]  # called for each new token, with its row
# Runs all prompts (token ids) together, greedily, each to its number of output tokens.
Generate = Callable[[list[list[int]], list[int], OnToken], None]
WARM_UP_TOKENS = 4


@dataclass(frozen=True)
class Job:
    """What is measured.

    Args:
        model: folder of the weights.
        batches: numbers of requests that run together.
        prompt, tokens: lengths of their prompts and answers.
        ttft_prompt: length of the prompts whose first tokens are timed.
        trace: lengths of prompt and answer of requests that arrive all at once.
        max_seqs: requests that may run at once.
    """

    model: str
    dtype: str
    batches: list[int]
    prompt: int
    tokens: int
    ttft_prompt: int
    trace: list[tuple[int, int]] = field(default_factory=list)
    max_seqs: int = 32

    @property
    def max_model_len(self) -> int:
        ends = [self.prompt + self.tokens, self.ttft_prompt + 1]
        return max(*ends, *(prompt + answer for prompt, answer in self.trace), 256)


def prompts(lengths: list[int], seed: int) -> list[list[int]]:
    """Random ids; no two share a block."""
    rng = np.random.default_rng(seed)
    return [rng.integers(10, 40_000, length).tolist() for length in lengths]


def measure(job: Job, generate: Generate) -> Iterator[dict[str, float]]:
    """Runs the loads; yields the figures of each.

    Before, each load's shapes run once, with other texts and short answers, so that no engine's
    figures have what it does at a shape's first use.
    """
    for work, answers in _warm_ups(job):
        generate(work, answers, lambda row: None)
    firsts = []
    for prompt in prompts([job.ttft_prompt] * 3, 2):
        began = time.perf_counter()
        generate([prompt], [1], lambda row: None)
        firsts.append(time.perf_counter() - began)
    yield {f"ttft_{job.ttft_prompt}_s": round(statistics.median(firsts), 3)}
    for batch in job.batches:
        yield _batch(generate, batch, job.prompt, job.tokens)
    if job.trace:
        work = prompts([prompt for prompt, _ in job.trace], 3)
        answers = [answer for _, answer in job.trace]
        began = time.perf_counter()
        generate(work, answers, lambda row: None)
        yield {"trace_tok_s": round(sum(answers) / (time.perf_counter() - began), 1)}


def _warm_ups(job: Job) -> Iterator[tuple[list[list[int]], list[int]]]:
    """Prompts and answers with the shapes of each load."""
    yield prompts([job.ttft_prompt], 102), [1]
    for batch in job.batches:
        yield prompts([job.prompt] * batch, 110 + batch), [WARM_UP_TOKENS] * batch
    if job.trace:
        lengths = [prompt for prompt, _ in job.trace]
        yield prompts(lengths, 103), [min(answer, WARM_UP_TOKENS) for _, answer in job.trace]


def _batch(generate: Generate, batch: int, prompt: int, tokens: int) -> dict[str, float]:
    """Output tokens a second of the whole batch, and of decoding alone: after every row has its
    first token."""
    times: list[float] = []
    rows = set()
    all_begun = 0

    def on_token(row: int) -> None:
        nonlocal all_begun
        times.append(time.perf_counter())
        if row not in rows:
            rows.add(row)
            all_begun = len(times)

    began = time.perf_counter()
    generate(prompts([prompt] * batch, 10 + batch), [tokens] * batch, on_token)
    seconds = time.perf_counter() - began
    if len(times) != batch * tokens:
        raise RuntimeError(f"{len(times)} tokens came, not {batch * tokens}")
    decoding = times[-1] - times[all_begun - 1]
    return {
        f"b{batch}_tok_s": round(batch * tokens / seconds, 1),
        f"b{batch}_decode_tok_s": round((len(times) - all_begun) / decoding, 1),
    }


def serve(make: Callable[[Job], Generate], settings: str) -> None:
    """The main function of a peer's script.

    Args:
        settings: how the peer runs, for whoever reads its figures.
    """
    job = Job(**json.loads(input()))
    print(json.dumps({"settings": settings}), flush=True)
    for figures in measure(job, make(job)):
        print(json.dumps(figures), flush=True)
