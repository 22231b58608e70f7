"""Servers of benchmarks, which are Python's own here."""

from __future__ import annotations

import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from bench.common.server_process import ServerFailed, ServerProcess

ANSWERS = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
IN_A_CHILD = f"""
import subprocess, sys
subprocess.run([sys.executable, "-c", {ANSWERS!r}, sys.argv[1]], start_new_session=True)
"""


def command(script: str) -> Callable[[int], list[str]]:
    return lambda port: [sys.executable, "-c", script, str(port)]


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=0.3):
            return True
    except OSError:
        return False


def test_a_paused_server_and_its_children_stand_still_until_resumed(tmp_path: Path) -> None:
    server = ServerProcess(command(IN_A_CHILD), log=tmp_path / "log", ready_s=30)
    try:
        assert answers(server.url)
        server.pause()
        assert not answers(server.url)
        server.resume()
        assert answers(server.url)
    finally:
        server.stop()
    time.sleep(0.1)
    assert not answers(server.url)


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match="no such model"):
        ServerProcess(command("raise SystemExit('no such model')"), log=tmp_path / "log")
    with pytest.raises(ServerFailed, match="not ready in time"):
        ServerProcess(command("import time; time.sleep(60)"), log=tmp_path / "log", ready_s=0)
