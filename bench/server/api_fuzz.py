"""schemathesis against a real server's own OpenAPI document: no 5xx, no hang, nothing left behind.

    python -m bench.server.api_fuzz --schemathesis PATH [--examples 200] [--minutes 4]

Needs the schemathesis command, which may live in an environment of its own. The last line is JSON;
exit status 1 if anything failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import aiohttp

from bench.server.faults import LIMIT, MODEL, Server, until_idle


def with_model(url: str) -> dict[str, Any]:
    """The server's document, with the model's own name as the only one: any other is a 404 before
    the rest of a body has been looked at."""
    with urlopen(f"{url}/openapi.json") as response:
        document: dict[str, Any] = json.load(response)
    for schema in document["components"]["schemas"].values():
        if "model" in schema.get("properties", {}):
            schema["properties"]["model"] = {"enum": [MODEL]}
    return document


def fuzz(command: str, url: str, examples: int, minutes: float) -> Counter[str]:
    """Runs it; cases by status."""
    with tempfile.TemporaryDirectory() as folder:
        report, document = Path(folder, "cases.json"), Path(folder, "openapi.json")
        document.write_text(json.dumps(with_model(url)))
        done = subprocess.run(
            [
                *(command, "run", str(document), "--url", url, "--checks", "not_a_server_error"),
                *("--phases", "examples,coverage,fuzzing", "--max-examples", str(examples)),
                *("--workers", "4", "--max-time", str(round(minutes * 60))),
                *("--request-timeout", "60"),
                *("--seed", "1", "--report-har-path", str(report), "--no-color", "--no-shrink"),
            ],
            stdout=subprocess.PIPE,
            text=True,
            cwd=folder,  # it leaves its examples there
        )
        print(done.stdout[-3000:], file=sys.stderr)
        entries = json.loads(report.read_text())["log"]["entries"]
    statuses = Counter(str(entry["response"]["status"]) for entry in entries)
    statuses["failed"] = int(done.returncode != 0)
    return statuses


async def settled(url: str) -> dict[str, Any]:
    """That the engine lives and holds nothing."""
    async with aiohttp.ClientSession(url, timeout=LIMIT) as http:
        seconds = await until_idle(http)
        async with http.get("/health") as response:
            return {"idle_after_s": round(seconds, 2), "health": response.status}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schemathesis", default="schemathesis", help="the command")
    parser.add_argument("--examples", type=int, default=200, help="most of an operation")
    parser.add_argument("--minutes", type=float, default=4.0)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no server is left behind
    found: dict[str, Any] = {}
    server = Server("--max-output-tokens", "4")
    try:
        statuses = fuzz(args.schemathesis, server.url, args.examples, args.minutes)
        found = asyncio.run(settled(server.url))
    finally:
        server.process.terminate()
        found["exit_status"] = server.wait()
    failed = statuses.pop("failed")
    found |= {"cases": statuses.total(), "statuses": dict(sorted(statuses.items()))}
    print(json.dumps({"api_fuzz": found}))
    bad = any(status.startswith("5") or status == "0" for status in statuses)
    sys.exit(bool(failed or bad or found["exit_status"]))


if __name__ == "__main__":
    main()
