"""`jaxserve chat [MODEL]`: a conversation in the terminal, without a server."""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING

from jaxserve.cli import flags
from jaxserve.cli.generate import MODEL_FLAGS, SAMPLING_FLAGS
from jaxserve.config import EngineConfig
from jaxserve.errors import InvalidRequestError
from jaxserve.sampling.params import SamplingParams

if TYPE_CHECKING:
    from jaxserve.engine.frontend.client import EngineClient

SUMMARY = "talk with a model in the terminal"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_model(parser, EngineConfig)
    parser.add_argument("--system", metavar="TEXT", help="the system message")
    flags.add_flags(parser, SamplingParams, only=SAMPLING_FLAGS, unset=MODEL_FLAGS, max_tokens=None)
    flags.add_flags(parser, EngineConfig, skip=("model", "seed"))


def run(args: argparse.Namespace) -> int:
    from jaxserve.engine.frontend.client import EngineClient

    flags.build(SamplingParams, args)  # reports bad values before the model is loaded
    # The event loop runs while the model generates, and stops while the user types.
    with asyncio.Runner() as runner:
        client = runner.run(EngineClient.start(flags.build(EngineConfig, args)))
        params = flags.build(SamplingParams, args, **client.sampling_defaults)
        try:
            _converse(runner, client, params, args.system)
        finally:
            runner.run(client.close())
    return 0


def _converse(
    runner: asyncio.Runner, client: EngineClient, params: SamplingParams, system: str | None
) -> None:
    """Answers lines until the end of input. Ctrl-C ends an answer; at the prompt, the program."""
    interactive = sys.stdin.isatty()
    if interactive:
        import readline  # noqa: F401 - adds line editing to input()

        print(_greeting(client, params), file=sys.stderr)
    messages = [{"role": "system", "content": system}] if system else []
    while True:
        try:
            line = input("> " if interactive else "")
        except EOFError:
            return
        if not line.strip():
            continue
        question = {"role": "user", "content": line}
        try:
            answer = runner.run(_answer(client, [*messages, question], params))
        except InvalidRequestError as error:
            print(f"jaxserve: {error}", file=sys.stderr)
        except KeyboardInterrupt:
            print()
        else:
            messages += [question, {"role": "assistant", "content": answer}]


def _greeting(client: EngineClient, params: SamplingParams) -> str:
    """Who answers, how to leave, and what can be set."""
    settings = ", ".join(f"{name} {getattr(params, name)}" for name in MODEL_FLAGS)
    return (
        f"This is {client.model_name}, with a context of {client.max_model_len:,} tokens.\n"
        "Ctrl-D leaves, Ctrl-C stops an answer.\n"
        f"It samples with {settings}.\n"
        "Others can be set at the start: --temperature, --top-p, --top-k, --min-p, --seed,\n"
        "--max-tokens, --system; jaxserve chat --help has them all.\n"
    )


async def _answer(
    client: EngineClient, messages: list[dict[str, str]], params: SamplingParams
) -> str:
    text = client.tokenizer.apply_chat_template(messages)
    prompt = client.tokenizer.encode(text, add_special_tokens=False)
    pieces = []
    async for delta in client.generate(prompt, params):
        print(delta.text, end="", flush=True)
        pieces.append(delta.text)
    print()
    return "".join(pieces)
