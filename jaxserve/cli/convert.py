"""`jaxserve convert MODEL TARGET`: writes any checkpoint as an Orbax folder that can be served."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from jaxserve.cli import flags
from jaxserve.config import EngineConfig

SUMMARY = "write a model as an Orbax folder"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_model(parser, EngineConfig)
    parser.add_argument("target", type=Path, metavar="TARGET", help="the folder to create")
    parser.add_argument(
        "--dtype",
        choices=("stored", "float32", "bfloat16", "float16", "int8"),
        default="stored",
        help="type of the weights; `stored` keeps it, but for GGUF's, which become float32; int8 "
        "makes the folder smaller, not the model in memory (default: stored)",
    )


def run(args: argparse.Namespace) -> int:
    import checkpoints
    from checkpoints.convert import convert

    path = checkpoints.pull(flags.build(EngineConfig, args).model)
    dtype = None if args.dtype == "stored" else args.dtype
    convert(path, args.target, dtype, progress=sys.stderr.isatty())
    print(args.target)
    return 0
