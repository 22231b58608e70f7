"""`jaxserve serve [MODEL]`: the OpenAI-compatible HTTP server."""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex

from jaxserve.cli import flags
from jaxserve.config import EngineConfig, ServerConfig

SUMMARY = "serve a model over OpenAI's HTTP API"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    flags.add_model(parser, EngineConfig)
    flags.add_flags(parser, EngineConfig, skip=("model",))
    flags.add_flags(parser, ServerConfig)


def run(args: argparse.Namespace) -> int:
    engine, server = flags.build(EngineConfig, args), flags.build(ServerConfig, args)

    from jaxserve.server.observability.request_log import log_to_stderr
    from jaxserve.server.processes.lifecycle import serve

    log_to_stderr()
    asyncio.run(serve(engine, server, announce))
    return 0


def announce(url: str, model: str, seconds: float) -> None:
    """Prints that the server is ready, and a command to try it."""
    question = {"role": "user", "content": "What is the capital of France?"}
    body = json.dumps({"model": model, "messages": [question], "temperature": 0})
    print(f"ready: {url} serving {model} (start-up {seconds:.1f} s)")
    command = ["curl"]
    if url.startswith("unix:"):
        command += ["--unix-socket", url.removeprefix("unix:")]
        url = "http://localhost"
    command += [f"{url}/v1/chat/completions", "-H", "Content-Type: application/json"]
    print(shlex.join([*command, "-d", body]), flush=True)
