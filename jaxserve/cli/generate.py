"""`jaxserve generate PROMPT`: continues a text, without a server."""

from __future__ import annotations

import argparse
import asyncio

from jaxserve.cli import flags
from jaxserve.config import EngineConfig
from jaxserve.sampling.params import SamplingParams

SUMMARY = "continue a text"
# Fields that the model's generation_config.json may set.
MODEL_FLAGS = ("temperature", "top_p", "top_k", "min_p")
SAMPLING_FLAGS = (*MODEL_FLAGS, "seed", "max_tokens")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", metavar="PROMPT", help="the text to continue")
    flags.add_flags(parser, SamplingParams, only=SAMPLING_FLAGS, unset=MODEL_FLAGS, max_tokens=128)
    # --seed is the request's, not the engine's.
    flags.add_flags(parser, EngineConfig, skip=("seed",))


def run(args: argparse.Namespace) -> int:
    asyncio.run(_generate(flags.build(EngineConfig, args), args))
    return 0


async def _generate(config: EngineConfig, args: argparse.Namespace) -> None:
    from jaxserve.engine.frontend.client import EngineClient

    flags.build(SamplingParams, args)  # reports bad values before the model is loaded
    client = await EngineClient.start(config)
    try:
        params = flags.build(SamplingParams, args, **client.sampling_defaults)
        async for delta in client.generate(args.prompt, params):
            print(delta.text, end="", flush=True)
        print()
    finally:
        await client.close()
