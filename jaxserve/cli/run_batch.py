"""`jaxserve run-batch`: answers a file of requests in OpenAI's batch format, without a server."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from jaxserve.cli import flags
from jaxserve.config import EngineConfig
from jaxserve.errors import ConfigError

SUMMARY = "answer a file of requests, in OpenAI's batch format"
MAX_IN_FLIGHT = 512


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        *("-i", "--input-file"),
        type=Path,
        required=True,
        metavar="FILE",
        help="the requests, one a line",
    )
    parser.add_argument(
        *("-o", "--output-file"),
        type=Path,
        required=True,
        metavar="FILE",
        help="the answers, one a line; an existing file is continued",
    )
    parser.add_argument(
        "--max-in-flight",
        type=int,
        default=MAX_IN_FLIGHT,
        metavar="INT",
        help=f"most requests at once (default: {MAX_IN_FLIGHT})",
    )
    flags.add_flags(parser, EngineConfig)


def run(args: argparse.Namespace) -> int:
    if args.max_in_flight < 1:
        raise ConfigError(f"max_in_flight must be at least 1; it was {args.max_in_flight}")

    from jaxserve.server.processes.run_batch import run_batch

    summary = asyncio.run(
        run_batch(
            flags.build(EngineConfig, args),
            args.input_file,
            args.output_file,
            args.max_in_flight,
            progress=sys.stderr.isatty(),
        )
    )
    print(
        f"{summary.total} requests: {summary.before} answered before, "
        f"{summary.total - summary.before} now, {summary.failed} of them with an error"
    )
    return 0
