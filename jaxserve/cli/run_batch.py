"""`jaxserve run-batch`: a file of requests, in OpenAI's batch format, without a server."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from jaxserve.cli import flags
from jaxserve.config import EngineConfig, ServerConfig
from jaxserve.errors import ConfigError

SUMMARY = "answer a file of requests, in OpenAI's batch format"
MAX_IN_FLIGHT = 512
# The settings of a server that say how requests are answered, not where it listens.
ANSWER_SETTINGS = (
    "served_model_names",
    "max_body_bytes",
    "max_choices",
    "max_logprobs",
    "max_stop_strings",
    "max_output_tokens",
    "tool_call_parser",
    "reasoning_parser",
    "chat_template",
    "strict_fields",
    "access_log",
    "log_prompts",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        *("-i", "--input-file"), type=Path, required=True, metavar="FILE", help="a request a line"
    )
    parser.add_argument(
        *("-o", "--output-file"),
        type=Path,
        required=True,
        metavar="FILE",
        help="gets a result a line; with one that exists, only requests without success are run",
    )
    parser.add_argument(
        "--max-in-flight",
        type=int,
        default=MAX_IN_FLIGHT,
        metavar="INT",
        help=f"most requests at once (default: {MAX_IN_FLIGHT})",
    )
    flags.add_flags(parser, EngineConfig)
    flags.add_flags(parser, ServerConfig, only=ANSWER_SETTINGS, access_log=False)


def run(args: argparse.Namespace) -> int:
    if args.max_in_flight < 1:
        raise ConfigError(f"max_in_flight must be at least 1; it was {args.max_in_flight}")

    from jaxserve.server.processes.run_batch import run_batch

    summary = asyncio.run(
        run_batch(
            flags.build(EngineConfig, args),
            flags.build(ServerConfig, args),
            args.input_file,
            args.output_file,
            args.max_in_flight,
            progress=sys.stderr.isatty(),
        )
    )
    print(
        f"{summary.total} requests: {summary.before} succeeded before, "
        f"{summary.total - summary.before} run now, {summary.failed} of them with an error"
    )
    return 1 if summary.failed else 0
