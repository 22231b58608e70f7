"""`jaxserve bench serve` against a real server, whose tokens are bytes."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest


def bench(server: Any, *words: str, code: int = 0) -> dict[str, Any]:
    """The last line of a run."""
    command = [sys.executable, "-m", "jaxserve.cli.main", "bench", "serve"]
    done = subprocess.run(
        [*command, "--base-url", server.url, *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stderr
    line: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert not any(isinstance(value, dict | list) for value in line.values())
    return line


@pytest.mark.slow
def test_a_rate_of_requests_with_a_shared_prefix(tiny_server: Any) -> None:
    line = bench(
        tiny_server,
        *("--dataset", "shared-prefix", "--hit-rate", "0.6", "--input-tokens", "40"),
        *("--num-prompts", "12", "--output-tokens", "8", "--warmup-requests", "2"),
        *("--request-rate", "40", "--max-concurrency", "2", "--ramp-up", "0.2"),
        *("--goodput", "ttft:60000", "tpot:60000", "e2el:60000"),
    )
    assert (line["model"], line["completed"], line["failed"]) == ("tiny", 12, 0)
    assert line["output_tokens"] == 12 * 8
    assert 12 * 40 * 4 < line["prompt_tokens"] < 12 * 40 * 8
    # Whole blocks of 16 of about 220, and not the second prompt while the first is computed.
    assert 0.4 < line["cached_prompt_share"] < 0.7
    assert line["good"] == 12
    assert 0 < line["mean_ttft_ms"] <= line["mean_e2el_ms"]
    assert line["p99_ttft_ms"] is None  # of 12 requests


@pytest.mark.slow
def test_each_turn_sends_the_whole_conversation(tiny_server: Any) -> None:
    line = bench(
        tiny_server,
        *("--dataset", "multi-turn", "--turns", "3", "--num-prompts", "2", "--endpoint", "chat"),
        *("--input-tokens", "5", "--output-tokens", "8"),
    )
    assert (line["completed"], line["failed"], line["output_tokens"]) == (6, 0, 48)
    # The first question is told three times, the second twice.
    assert line["prompt_tokens"] > 2 * (3 + 2 + 1) * 5 * 4


@pytest.mark.slow
def test_what_the_server_refuses_is_counted_by_its_status(tiny_server: Any) -> None:
    line = bench(tiny_server, "--num-prompts", "2", "--output-tokens", "5000", code=1)
    assert (line["completed"], line["failed"], line["failed_http_400"]) == (0, 2, 2)
    assert line["mean_ttft_ms"] is None
