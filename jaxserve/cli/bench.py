"""`jaxserve bench serve | throughput | latency | startup`: prints figures, then a line of JSON."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from jaxserve.bench.settings import DatasetConfig, LatencyConfig, LoadConfig, StartupConfig
from jaxserve.cli import flags
from jaxserve.config import EngineConfig

if TYPE_CHECKING:
    from jaxserve.bench.report import Figures

SUMMARY = "measure a server, the engine alone, or the start-up"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(required=True, metavar="BENCHMARK")

    def add(
        name: str, run: Callable[[argparse.Namespace], int], summary: str, *settings: type
    ) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=summary, description=summary)
        for each in settings:
            # --seed is the benchmark's, not the engine's.
            skip = ("seed",) if each is EngineConfig and len(settings) > 1 else ()
            flags.add_flags(command, each, skip=skip)
        command.set_defaults(benchmark=run)
        return command

    server = "send load to an OpenAI-compatible server; measure throughput and latency"
    command = add("serve", _serve, server, LoadConfig, DatasetConfig)
    command.add_argument(
        "--tokenizer",
        metavar="MODEL",
        help="to count the tokens of sharegpt-file: a folder, a GGUF file or a hub name",
    )
    offline = "measure tokens a second of the engine in this process, all requests at once"
    add("throughput", _throughput, offline, DatasetConfig, EngineConfig)
    add(
        "latency",
        _latency,
        "measure the time of a batch in this process",
        LatencyConfig,
        EngineConfig,
    )
    start = "measure the time until a server is ready, with and without compiled programs"
    add("startup", _startup, start, StartupConfig, EngineConfig)


def run(args: argparse.Namespace) -> int:
    code: int = args.benchmark(args)
    return code


def _serve(args: argparse.Namespace) -> int:
    load, dataset = flags.build(LoadConfig, args), flags.build(DatasetConfig, args)

    from tqdm import tqdm

    from jaxserve.bench.datasets import make_dataset
    from jaxserve.bench.load_generator import drive
    from jaxserve.bench.report import summarise

    if load.api_key is None:
        load = replace(load, api_key=os.environ.get("OPENAI_API_KEY"))
    conversations = make_dataset(dataset, _token_counter(args.tokenizer))
    warm_up = []
    if load.warmup_requests:
        # With other texts than those that are measured, which must not be in the prefix cache.
        random = replace(dataset, dataset="random", dataset_path=None, seed=dataset.seed + 1)
        warm_up = make_dataset(replace(random, num_prompts=load.warmup_requests))
    with tqdm(
        total=sum(map(len, conversations)), unit="request", disable=not sys.stderr.isatty()
    ) as bar:
        done = asyncio.run(drive(load, conversations, warm_up, dataset.seed, bar.update))
    figures: Figures = {
        "benchmark": "serve",
        "base_url": load.base_url,
        "model": done.model,
        "endpoint": load.endpoint,
        "dataset": dataset.dataset,
        "seed": dataset.seed,
        "request_rate_per_s": load.request_rate,
        "burstiness": load.burstiness,
        "max_concurrency": load.max_concurrency,
        "ramp_up_s": load.ramp_up,
        "ignore_eos": load.ignore_eos,
        **summarise(done.outcomes, done.duration_s, load.limits_ms()),
    }
    failed = next((outcome for outcome in done.outcomes if outcome.error is not None), None)
    if failed is not None:
        print(f"jaxserve: first failure, {failed.error}: {failed.detail}", file=sys.stderr)
    _print(figures)
    return 0 if figures["completed"] else 1


def _token_counter(tokenizer: str | None) -> Callable[[str], int] | None:
    if tokenizer is None:
        return None
    import checkpoints
    from jaxserve.text.tokenizer import load_tokenizer

    loaded = load_tokenizer(checkpoints.pull(tokenizer))
    return lambda text: len(loaded.encode(text, add_special_tokens=False))


def _throughput(args: argparse.Namespace) -> int:
    engine, dataset = flags.build(EngineConfig, args), flags.build(DatasetConfig, args)

    from jaxserve.bench.offline import throughput

    _print(throughput(engine, dataset, progress=sys.stderr.isatty()))
    return 0


def _latency(args: argparse.Namespace) -> int:
    engine, config = flags.build(EngineConfig, args), flags.build(LatencyConfig, args)

    from jaxserve.bench.offline import latency

    _print(latency(engine, config, progress=sys.stderr.isatty()))
    return 0


def _startup(args: argparse.Namespace) -> int:
    engine, config = flags.build(EngineConfig, args), flags.build(StartupConfig, args)

    import checkpoints
    from jaxserve.bench.startup_time import startup

    model = checkpoints.pull(engine.model, engine.revision)
    serve_flags = flags.words(replace(engine, model=EngineConfig().model, revision=None))
    _print(startup(model, serve_flags, config.warm_rounds))
    return 0


def _print(figures: Figures) -> None:
    from jaxserve.bench.report import json_line, render

    print(render(figures))
    print(json_line(figures), flush=True)
