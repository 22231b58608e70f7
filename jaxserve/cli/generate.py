"""`jaxserve generate PROMPT`: continues a text, without a server."""

from __future__ import annotations

import argparse
import asyncio

from jaxserve.cli import flags
from jaxserve.config import EngineConfig
from jaxserve.sampling.params import SamplingParams

SUMMARY = "continue a text"
SAMPLING_FLAGS = ("temperature", "top_p", "top_k", "min_p", "seed", "max_tokens")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", metavar="PROMPT", help="the text to continue")
    flags.add_flags(parser, SamplingParams, only=SAMPLING_FLAGS, max_tokens=128)
    # --seed is the request's here.
    flags.add_flags(parser, EngineConfig, skip=("seed",))


def run(args: argparse.Namespace) -> int:
    params = flags.build(SamplingParams, args)
    asyncio.run(_generate(flags.build(EngineConfig, args), args.prompt, params))
    return 0


async def _generate(config: EngineConfig, prompt: str, params: SamplingParams) -> None:
    from jaxserve.engine.client import EngineClient

    client = await EngineClient.start(config)
    try:
        async for delta in client.generate(prompt, params):
            print(delta.text, end="", flush=True)
        print()
    finally:
        await client.close()
