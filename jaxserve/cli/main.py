"""The `jaxserve` command. Modules that import slowly are imported by the subcommands that need
them."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import jaxserve
from jaxserve.cli import bench, chat, convert, generate, plan, pull, run_batch, serve, top
from jaxserve.cli.flag_parser import FlagParser
from jaxserve.errors import JaxserveError

FAILED = 1
INTERRUPTED = 128 + 2  # as a shell reports SIGINT


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one subcommand; returns the process's exit code."""
    try:
        args = make_parser().parse_args(argv)
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # Python flushes stdout once more at exit, which would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except (JaxserveError, OSError) as error:
        print(f"jaxserve: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def make_parser() -> FlagParser:
    """The parser of all commands."""
    parser = FlagParser(prog="jaxserve", description="LLM serving on JAX/XLA.")
    parser.add_argument("--version", action="version", version=f"jaxserve {jaxserve.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for module in (serve, generate, chat, run_batch, bench, top, plan, pull, convert):
        name = module.__name__.rpartition(".")[2].replace("_", "-")
        command = commands.add_parser(name, help=module.SUMMARY, description=module.SUMMARY)
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
