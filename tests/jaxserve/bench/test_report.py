"""Every figure against one calculated by hand."""

from __future__ import annotations

import json

import numpy as np
import pytest

from jaxserve.bench.report import json_line, percentile, render, spread, summarise
from jaxserve.bench.timed_request import Outcome

# Two answers of 3 and 5 tokens, one of a single token, two that failed.
OUTCOMES = [
    Outcome(0.1, [0.2, 0.4], 0.7, prompt_tokens=10, cached_tokens=0, output_tokens=3),
    Outcome(0.3, [0.1, 0.1, 0.1, 0.1], 0.7, prompt_tokens=20, cached_tokens=16, output_tokens=5),
    Outcome(0.2, [], 0.2, prompt_tokens=10, cached_tokens=8, output_tokens=1),
    Outcome(error="http_429"),
    Outcome(0.1, [], 0.0, prompt_tokens=10, output_tokens=7, error="stream"),
]


def test_counts_and_throughput() -> None:
    figures = summarise(OUTCOMES, 4.0, {})
    assert figures["duration_s"] == 4.0
    assert (figures["completed"], figures["failed"]) == (3, 2)
    assert (figures["failed_http_429"], figures["failed_stream"]) == (1, 1)
    assert (figures["prompt_tokens"], figures["output_tokens"]) == (40, 9)
    assert figures["cached_prompt_share"] == 0.6
    assert figures["requests_per_s"] == 0.75
    assert figures["output_tokens_per_s"] == 2.25
    assert figures["total_tokens_per_s"] == 12.25
    assert "goodput_requests_per_s" not in figures


def test_latencies() -> None:
    figures = summarise(OUTCOMES, 4.0, {})
    assert (figures["mean_ttft_ms"], figures["median_ttft_ms"]) == (200, 200)
    # (0.7 - 0.1) / 2 and (0.7 - 0.3) / 4; the single token has none.
    assert (figures["mean_tpot_ms"], figures["median_tpot_ms"]) == (200, 200)
    assert figures["mean_itl_ms"] == pytest.approx(1000 / 6, abs=1e-3)
    assert figures["median_itl_ms"] == 100
    assert figures["mean_e2el_ms"] == pytest.approx(1600 / 3, abs=1e-3)


def test_percentiles_are_those_of_thirty_requests_and_more() -> None:
    figures = summarise(OUTCOMES * 10, 4.0, {})
    # Of 20, ten each of 0.1 and 0.3: places 17.1 and 18.81.
    assert (figures["p90_tpot_ms"], figures["p99_tpot_ms"]) == (300, 300)
    # Of 60, 40 of 0.1, ten of 0.2, ten of 0.4: places 53.1 and 58.41.
    assert (figures["p90_itl_ms"], figures["p99_itl_ms"]) == (400, 400)
    assert (figures["p90_ttft_ms"], figures["p99_ttft_ms"]) == (300, 300)
    for count in (1, 9):
        few = summarise(OUTCOMES * count, 4.0, {})
        assert few["median_ttft_ms"] == 200
        for name in ("ttft", "tpot", "itl", "e2el"):
            assert few[f"p90_{name}_ms"] is few[f"p99_{name}_ms"] is None
    thirty = spread("ttft", [0.001 * n for n in range(30)], 30)
    assert (thirty["p90_ttft_ms"], thirty["p99_ttft_ms"]) == (26.1, 28.71)
    assert spread("ttft", [0.001 * n for n in range(29)], 29)["p90_ttft_ms"] is None


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        ({"ttft": 200}, 2),
        ({"tpot": 100}, 2),  # an answer of one token meets any
        ({"e2el": 699}, 1),
        ({"ttft": 300, "tpot": 300, "e2el": 700}, 3),
        ({"ttft": 250, "tpot": 200}, 1),
    ],
)
def test_goodput_counts_requests_that_meet_every_limit(limits: dict[str, float], good: int) -> None:
    figures = summarise(OUTCOMES, 4.0, limits)
    assert figures["good"] == good
    assert figures["goodput_requests_per_s"] == good / 4


def test_percentiles_are_numpys() -> None:
    values = list(np.random.default_rng(0).exponential(size=101))
    for percent in (0, 50, 90, 99, 100):
        assert percentile(values, percent) == pytest.approx(np.percentile(values, percent))


def test_without_an_answer_figures_are_null_and_the_line_is_json() -> None:
    figures = summarise([Outcome(error="connection")], 1.0, {})
    line = json.loads(json_line(figures | {"request_rate_per_s": float("inf")}))
    assert line["mean_ttft_ms"] is line["cached_prompt_share"] is line["request_rate_per_s"] is None
    assert line["failed_connection"] == 1
    assert all(value is None or isinstance(value, int | float) for value in line.values())


def test_render_has_every_figure() -> None:
    text = render({"completed": 3, **spread("ttft", [0.001, 0.003] * 15, 30)})
    assert text.splitlines()[0].split() == ["completed", "3"]
    assert text.splitlines()[-1].split()[-4:] == ["2", "2", "3", "3"]
