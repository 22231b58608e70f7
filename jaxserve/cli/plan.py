"""`jaxserve plan MODEL`: computes memory, blocks and programs, without weights or a GPU."""

from __future__ import annotations

import argparse
from pathlib import Path

from jaxserve.cli import flags
from jaxserve.config import EngineConfig

SUMMARY = "show the memory, blocks and programs that serving a model needs"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_model(parser, EngineConfig)
    parser.add_argument("--gpu", help="plan for this GPU, such as H100-80GB (default: a CPU)")
    parser.add_argument(
        "--suggest",
        action="store_true",
        help="say which quantisations of the model fit the GPU (default: every one we know), and "
        "how many requests each holds",
    )
    flags.add_flags(parser, EngineConfig, skip=("model",))


def run(args: argparse.Namespace) -> int:
    import checkpoints
    from jaxserve.engine.startup.capacity import plan, suggest
    from jaxserve.text.tokenizer import load_tokenizer

    config = flags.build(EngineConfig, args)
    # Needs a config only: a folder without weights is accepted.
    path = Path(config.model)
    path = path if path.exists() else checkpoints.pull(config.model, config.revision)
    if checkpoints.has_weights(path):
        load_tokenizer(path)  # a server would refuse a model whose tokenizer can't be read
    describe = suggest if args.suggest else plan
    for line in describe(config, path, args.gpu):
        print(line)
    return 0
