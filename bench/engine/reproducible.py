"""Whether a request gives the same bits under load as alone:

    python -m bench.engine.reproducible [--requests 1000] [--model FOLDER]

Requests of random length, sampling parameters and arrival run on an engine in a process of its own,
whose pool is so small that it preempts. Then each runs alone on the same engine; with
--speculation, which is for the first run, on another that doesn't guess. The exit status is 1
unless tokens, text, logprobs and finish reasons are equal to the last bit, some request was
preempted, nothing was compiled, and every block is free at the end. The last line is one flat JSON
object.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from dataclasses import replace
from typing import Any

from bench.common.figures import print_figures
from jaxserve.config import MIB, EngineConfig
from jaxserve.engine.frontend.client import EngineClient
from jaxserve.outputs import CompletionDelta
from jaxserve.sampling.params import SamplingParams, StructuredOutputsParams

OPTIONS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.0, "logprobs": 3},
    {"temperature": 0.0, "prompt_logprobs": 1},
    {"logprobs": 1},
    {"top_k": 20, "presence_penalty": 0.7},
    {"top_p": 0.9, "frequency_penalty": 0.4, "logprobs": 2},
    {"min_p": 0.05, "repetition_penalty": 1.2},
    {"temperature": 1.3, "typical_p": 0.8},
    {"logit_bias": {100: 2.0, 200: -3.0}, "min_tokens": 4, "ignore_eos": False},
    {"stop": ["e", "the"], "temperature": 0.5},
    {"structured_outputs": StructuredOutputsParams(regex=r"[a-z]{2,6}( [a-z]{2,6}){1,4}")},
    {"n": 2, "logprobs": 0},
)
Job = tuple[list[int], SamplingParams]


def jobs(count: int, context: int, longest_output: int, vocab: int, seed: int) -> list[Job]:
    """Random requests; a third of the prompts share a prefix, so that the prefix cache is used."""
    rng = random.Random(seed)
    longest_prompt = context - longest_output
    shared = [rng.randrange(10, vocab - 10) for _ in range(longest_prompt)]
    found = []
    for i in range(count):
        length = min(longest_prompt, 1 + int(rng.expovariate(1 / 60)))
        ids = [rng.randrange(10, vocab - 10) for _ in range(length)]
        if i % 3 == 0:
            kept = rng.randrange(length)
            ids[:kept] = shared[:kept]
        params = SamplingParams(ignore_eos=True, max_tokens=rng.randint(1, longest_output), seed=i)
        options = rng.choice(OPTIONS)
        if "min_tokens" in options:
            options = options | {"min_tokens": min(options["min_tokens"], params.max_tokens or 0)}
        found.append((ids, replace(params, **options)))
    return found


async def run(client: EngineClient, job: Job) -> list[CompletionDelta]:
    """Each choice as a whole."""
    pieces: dict[int, list[CompletionDelta]] = {}
    async for delta in client.generate(*job):
        pieces.setdefault(delta.index, []).append(delta)
    return [CompletionDelta.join(pieces[i]) for i in sorted(pieces)]


def _without_counts(choices: list[CompletionDelta]) -> list[CompletionDelta]:
    """The choices without the counts of cached tokens and of guesses, which may differ."""
    return [
        replace(choice, cached_tokens=None, accepted_guesses=0, rejected_guesses=0)
        for choice in choices
    ]


async def under_load(
    client: EngineClient, wanted: list[Job], at_once: int, rng: random.Random
) -> list[list[CompletionDelta]]:
    """Runs all of them, arriving at random, at most `at_once` at any time."""
    places = asyncio.Semaphore(at_once)

    async def one(job: Job) -> list[CompletionDelta]:
        async with places:
            await asyncio.sleep(rng.expovariate(20))
            return await run(client, job)

    return await asyncio.gather(*(one(job) for job in wanted))


async def measure(args: argparse.Namespace) -> dict[str, Any]:
    config = EngineConfig(
        args.model,
        max_model_len=args.context,
        max_num_seqs=16,
        max_num_batched_tokens=128,
        kv_cache_memory=int(args.pool_mib * MIB),
        forbid_compile=True,
        speculation=args.speculation,
        num_speculative_tokens=args.num_speculative_tokens,
    )
    plain = replace(config, speculation=None, num_speculative_tokens=None)
    client = await EngineClient.start(config)
    reference = client if plain == config else await EngineClient.start(plain)
    try:
        context, vocab = client.ready.max_model_len, client.ready.vocab_size
        wanted = jobs(args.requests, context, args.longest_output, vocab, args.seed)
        begin = time.monotonic()
        loaded = await under_load(client, wanted, 32, random.Random(args.seed))
        load_s = time.monotonic() - begin
        preemptions = client.stats.scheduler.preemptions
        different = []
        for i, job in enumerate(wanted):
            if _without_counts(await run(reference, job)) != _without_counts(loaded[i]):
                different.append(i)
                print(f"request {i}: {job[1]}")
            if i % 100 == 99:
                print(f"{i + 1} alone, {len(different)} different", flush=True)
        await asyncio.sleep(0.5)  # until the engine's last report has come
        stats = client.stats
    finally:
        await client.close()
        if reference is not client:
            await reference.close()
    guesses = stats.speculation
    return {
        "requests": len(wanted),
        "output_tokens": sum(len(c.token_ids) for choices in loaded for c in choices),
        "equal_to_the_last_bit": len(wanted) - len(different),
        "preemptions": preemptions,
        "guesses": 0 if guesses is None else guesses.draft_tokens,
        "guesses_taken": 0 if guesses is None else guesses.accepted_tokens,
        "prefix_hit_tokens": stats.scheduler.prefix_hits,
        "compiles_after_ready": stats.compiles,
        "blocks": stats.scheduler.blocks_total,
        "blocks_in_use_at_the_end": stats.scheduler.blocks_used,
        "load_s": round(load_s, 1),
        "alone_s": round(time.monotonic() - begin - load_s, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--longest-output", type=int, default=24)
    parser.add_argument("--model", default=EngineConfig().model)
    parser.add_argument("--pool-mib", type=float, default=40.0)
    parser.add_argument("--speculation", help="a name of EngineConfig.speculation")
    parser.add_argument("--num-speculative-tokens", type=int)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    figures = asyncio.run(measure(args))
    print_figures(figures)
    good = (
        figures["equal_to_the_last_bit"] == figures["requests"]
        and figures["preemptions"] > 0
        and figures["compiles_after_ready"] == figures["blocks_in_use_at_the_end"] == 0
    )
    sys.exit(not good)


if __name__ == "__main__":
    main()
