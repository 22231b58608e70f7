"""Does to a real server what faulty clients and machines do, and prints how it took it:

    python -m bench.server.faults [--only kill leave ...]

Each part starts its own server of the demo model, 64 sequences at once. The exit status is 1 if in
any part the server answered 5xx where it should not, hung, kept blocks, or died. The last line is
one flat JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from bench.common.figures import flat, print_figures
from bench.common.server_process import ServerProcess
from bench.server import demo_server
from bench.server.faults.bad_requests import bodies, headers
from bench.server.faults.disconnects import abort, leave
from bench.server.faults.process_ends import kill, stop
from bench.server.faults.slow_readers import slow

Part = Callable[[ServerProcess, aiohttp.ClientSession], Awaitable[dict[str, Any]]]
PARTS: tuple[Part, ...] = (abort, leave, bodies, slow, headers, kill, stop)


async def run(part: Part) -> dict[str, Any]:
    server = await asyncio.to_thread(demo_server.start)
    try:
        async with demo_server.session(server.url) as http:
            return await part(server, http)
    finally:
        if server.running:
            server.terminate()
            server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [part.__name__ for part in PARTS]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    only = parser.parse_args().only
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no server is left behind
    found: dict[str, Any] = {}
    failed = False
    for part in PARTS:
        if part.__name__ not in only:
            continue
        try:
            found[part.__name__] = asyncio.run(run(part))
        except Exception as error:
            failed = True
            found[part.__name__] = {"failed": repr(error)}
        print(f"{part.__name__}: {found[part.__name__]}", flush=True)
    print_figures(flat(found))
    sys.exit(failed)


if __name__ == "__main__":
    main()
