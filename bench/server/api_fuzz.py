"""schemathesis against a real server's own OpenAPI document: no 5xx, no hang, no block still held.

    python -m bench.server.api_fuzz --schemathesis PATH [--examples 200] [--minutes 4]

Needs the schemathesis command, which may be installed in an environment of its own. The exit status
is 1 if anything failed. The last line is one flat JSON object.
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

from bench.common.figures import Figures, flat, print_figures
from bench.server import demo_server
from bench.server.demo_server import MODEL, until_idle


def with_model(url: str) -> dict[str, Any]:
    """The server's OpenAPI document, changed to allow no other model name: one that the server does
    not know is answered 404 before the rest of the body is validated."""
    with urlopen(f"{url}/openapi.json") as response:
        document: dict[str, Any] = json.load(response)
    for schema in document["components"]["schemas"].values():
        if "model" in schema.get("properties", {}):
            schema["properties"]["model"] = {"enum": [MODEL]}
    return document


def fuzz(command: str, url: str, examples: int, minutes: float) -> Counter[str]:
    """Runs schemathesis; how many cases had each status, and under "failed" whether it failed."""
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
            cwd=folder,  # where it writes its examples
        )
        print(done.stdout[-3000:], file=sys.stderr)
        entries = json.loads(report.read_text())["log"]["entries"]
    statuses = Counter(str(entry["response"]["status"]) for entry in entries)
    statuses["failed"] = int(done.returncode != 0)
    return statuses


async def state_after(url: str) -> Figures:
    """How soon the engine holds nothing any more, and its health."""
    async with demo_server.session(url) as http:
        seconds = await until_idle(http)
        async with http.get("/health") as response:
            return {"idle_after_s": round(seconds, 2), "health_status": response.status}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schemathesis", default="schemathesis", help="the command")
    parser.add_argument("--examples", type=int, default=200, help="most cases of one operation")
    parser.add_argument("--minutes", type=float, default=4.0)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no server is left behind
    found: Figures = {}
    server = demo_server.start("--max-output-tokens", "4")
    try:
        statuses = fuzz(args.schemathesis, server.url, args.examples, args.minutes)
        found = asyncio.run(state_after(server.url))
    finally:
        server.terminate()
        found["exit_status"] = server.wait()
    failed = statuses.pop("failed")
    found["cases"] = statuses.total()
    print_figures(found | flat({"answered": dict(sorted(statuses.items()))}))
    bad = any(status.startswith("5") or status == "0" for status in statuses)
    sys.exit(bool(failed or bad or found["exit_status"]))


if __name__ == "__main__":
    main()
