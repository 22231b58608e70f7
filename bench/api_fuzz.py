"""schemathesis against a real server's own OpenAPI document: no 5xx, no hang, nothing left behind.

    python -m bench.api_fuzz --schemathesis PATH [--examples 200] [--minutes 4]

Needs the schemathesis command, which may live in an environment of its own. The last line is JSON;
exit status 1 if anything failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp

from bench.server_faults import LIMIT, Server, until_idle


def fuzz(command: str, url: str, examples: int, minutes: float) -> Counter[str]:
    """Runs it; cases by status."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "cases.json")
        done = subprocess.run(
            [
                *(command, "run", f"{url}/openapi.json", "--checks", "not_a_server_error"),
                *("--phases", "examples,coverage,fuzzing", "--max-examples", str(examples)),
                *("--workers", "4", "--max-time", str(minutes * 60), "--request-timeout", "60"),
                *("--seed", "1", "--report-har-path", str(report), "--no-color", "--no-shrink"),
            ],
            stdout=subprocess.PIPE,
            text=True,
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
    server = Server("--max-output-tokens", "4")
    try:
        statuses = fuzz(args.schemathesis, server.url, args.examples, args.minutes)
        found = asyncio.run(settled(server.url))
    finally:
        server.process.terminate()
        found = {"exit_status": server.wait()} | found
    failed = statuses.pop("failed")
    found |= {"cases": statuses.total(), "statuses": dict(sorted(statuses.items()))}
    print(json.dumps({"api_fuzz": found}))
    bad = any(status.startswith("5") or status == "0" for status in statuses)
    sys.exit(bool(failed or bad or found["exit_status"]))


if __name__ == "__main__":
    main()
