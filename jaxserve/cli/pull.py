"""`jaxserve pull MODEL`: downloads a model into the cache and prints its path."""

from __future__ import annotations

import argparse

from jaxserve.cli import flags
from jaxserve.config import EngineConfig

SUMMARY = "download a model and print its path"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_model(parser, EngineConfig)


def run(args: argparse.Namespace) -> int:
    import checkpoints

    print(checkpoints.pull(flags.build(EngineConfig, args).model))
    return 0
