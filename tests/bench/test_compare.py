"""What bench/peers/compare does with servers and results; the servers are Python's own."""

from __future__ import annotations

import sys
import time
import urllib.request
from pathlib import Path

import pytest

from bench.peers.compare.engines import Engine
from bench.peers.compare.records import Record, Results
from bench.peers.compare.server import Server, ServerFailed

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


def engine(script: str) -> Engine:
    return Engine("fake", sys.executable, "", lambda _, port: ["-c", script, str(port)], ())


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=0.3):
            return True
    except OSError:
        return False


def test_a_paused_server_and_its_children_stand_still_until_resumed(tmp_path: Path) -> None:
    server = Server(engine(IN_A_CHILD), tmp_path, tmp_path / "log", limit_s=30)
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


def test_an_engine_that_does_not_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(ServerFailed, match="no such model"):
        Server(engine("raise SystemExit('no such model')"), tmp_path, tmp_path / "log", 30)
    with pytest.raises(ServerFailed, match="not ready in time"):
        Server(engine("import time; time.sleep(60)"), tmp_path, tmp_path / "log", 0)


def test_an_engine_that_is_not_installed_names_its_variable() -> None:
    absent = Engine("fake", None, "FAKE_PYTHON", lambda _, port: [], ())
    assert absent.missing is not None
    assert "FAKE_PYTHON" in absent.missing


def test_rounds_become_a_median_and_its_spread_and_reasons_last_until_mended() -> None:
    def record(engine: str, tok_s: float | None, seed: int, value: float = 4) -> Record:
        if tok_s is None:
            return Record(engine, "concurrency", value, seed, reason=f"{engine} broke")
        return Record(engine, "concurrency", value, seed, {"output_tok_s": tok_s})

    results = Results(
        [
            *(record("a", 10.0, 0), record("a", 30.0, 1), record("a", 11.0, 2)),
            *(record("b", None, 0), record("c", None, 0), record("c", 5.0, 1)),
            record("c", None, 1, value=8),
        ]
    )
    spread = results.spread("a", "concurrency", 4, "output_tok_s")
    assert spread is not None
    assert (spread.low, spread.median, spread.high) == (10.0, 11.0, 30.0)
    assert results.spread("b", "concurrency", 4, "output_tok_s") is None
    assert results.reasons("b") == ["b broke"]
    assert results.reasons("c") == ["c broke"]  # of 8, which no run has measured
    assert Results([record("c", None, 0), record("c", 5.0, 1)]).reasons("c") == []
