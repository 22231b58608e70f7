"""`jaxserve pull MODEL`: downloads a model into the cache and prints its path."""

from __future__ import annotations

import argparse

from jaxserve.cli import flags
from jaxserve.config import EngineConfig

SUMMARY = "download a model and print its path"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_model(parser, EngineConfig)
    flags.add_flags(parser, EngineConfig, only=("revision",))


def run(args: argparse.Namespace) -> int:
    import checkpoints

    config = flags.build(EngineConfig, args)
    print(checkpoints.pull(config.model, config.revision))
    return 0
