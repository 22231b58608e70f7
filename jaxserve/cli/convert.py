"""`jaxserve convert MODEL TARGET`: writes any checkpoint as an Orbax folder that can be served."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from jaxserve.cli import flags
from jaxserve.config import EngineConfig
from jaxserve.errors import ConfigError

SUMMARY = "write a model as an Orbax folder"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_model(parser, EngineConfig)
    parser.add_argument("target", type=Path, metavar="TARGET", help="the folder to create")
    parser.add_argument(
        "--dtype",
        choices=("stored", "float32", "bfloat16", "float16"),
        default="stored",
        help="of the weights, all as floats; stored keeps them as they are, quantised or not "
        "(default: stored)",
    )
    parser.add_argument(
        "--quantization",
        choices=("fp8", "int8", "int4"),
        help="quantise the layers' matrices of a checkpoint of floats; other weights stay as they "
        "are",
    )


def run(args: argparse.Namespace) -> int:
    import checkpoints
    from checkpoints.convert import convert

    path = checkpoints.pull(flags.build(EngineConfig, args).model)
    dtype = None if args.dtype == "stored" else args.dtype
    if dtype is not None and args.quantization is not None:
        raise ConfigError("--dtype and --quantization exclude each other: leave one out")
    convert(path, args.target, dtype, args.quantization, progress=sys.stderr.isatty())
    print(args.target)
    return 0
