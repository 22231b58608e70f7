"""Benchmarks of the engine in this process, without a server."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial

from jaxserve import LLM, SamplingParams
from jaxserve.bench.datasets import Conversation, make_dataset
from jaxserve.bench.random_text import random_text
from jaxserve.bench.report import Figures, spread
from jaxserve.bench.settings import DatasetConfig, LatencyConfig
from jaxserve.config import EngineConfig
from jaxserve.errors import ConfigError
from jaxserve.outputs import RequestOutput


def throughput(engine: EngineConfig, dataset: DatasetConfig, *, progress: bool) -> Figures:
    """Runs all prompts of a dataset at once, each to its full length, after a short warm-up.

    Raises:
        ConfigError: the dataset has conversations of several turns.
    """
    if dataset.dataset == "multi-turn":
        raise ConfigError("multi-turn needs a server: bench serve")
    llm = LLM(**asdict(engine), progress=progress)
    encode = partial(llm.tokenizer.encode, add_special_tokens=False)
    conversations = make_dataset(dataset, lambda text: len(encode(text)))
    _generate(llm, ["warm up"], [2])
    seconds, outputs = _timed(llm, conversations)
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    output = sum(len(output.outputs[0].token_ids) for output in outputs)
    cached = sum(output.num_cached_tokens for output in outputs)
    return {
        "benchmark": "throughput",
        **_identity(llm),
        "dataset": dataset.dataset,
        "seed": dataset.seed,
        "duration_s": round(seconds, 3),
        "completed": len(outputs),
        "prompt_tokens": prompt,
        "output_tokens": output,
        "cached_prompt_share": round(cached / prompt, 4),
        "requests_per_s": round(len(outputs) / seconds, 4),
        "output_tokens_per_s": round(output / seconds, 3),
        "total_tokens_per_s": round((prompt + output) / seconds, 3),
    }


def latency(engine: EngineConfig, config: LatencyConfig, *, progress: bool) -> Figures:
    """Times a batch of prompts of one length, several times; no prompt is used twice, so that
    the prefix cache finds nothing."""
    llm = LLM(**asdict(engine), progress=progress)
    draws = random.Random(f"latency-{config.seed}")
    lengths = [config.output_tokens] * config.batch_size
    seconds = []
    for _ in range(config.warmup_iters + config.iters):
        texts = [random_text(config.input_tokens, draws) for _ in lengths]
        began = time.perf_counter()
        _generate(llm, texts, lengths)
        seconds.append(time.perf_counter() - began)
    counted = seconds[config.warmup_iters :]
    return {
        "benchmark": "latency",
        **_identity(llm),
        **asdict(config),
        **spread("e2el", counted, len(counted)),
        "min_e2el_ms": round(min(counted) * 1000, 3),
    }


def _timed(llm: LLM, conversations: Sequence[Conversation]) -> tuple[float, list[RequestOutput]]:
    texts = [turn.text for (turn,) in conversations]
    lengths = [turn.output_tokens for (turn,) in conversations]
    began = time.perf_counter()
    outputs = _generate(llm, texts, lengths)
    return time.perf_counter() - began, outputs


def _generate(llm: LLM, texts: list[str], lengths: list[int]) -> list[RequestOutput]:
    """Generates greedily, each output to its length."""
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in lengths]
    return llm.generate(texts, params)


def _identity(llm: LLM) -> Figures:
    ready = llm.core.ready
    return {
        "model": llm.config.model,
        "max_model_len": ready.max_model_len,
        "startup_s": round(ready.ready_s, 2),
    }
