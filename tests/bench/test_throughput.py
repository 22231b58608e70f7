"""bench.engine.throughput: several rounds become medians, and a lead holds in every round."""

from __future__ import annotations

from typing import Any

from bench.engine.throughput import beside, joined


def test_rounds_become_a_median_and_a_range() -> None:
    rounds = [{"b8_tok_s": 10.0, "note": "a"}, {"b8_tok_s": 14.0, "ready_s": 3.0}]
    assert joined(rounds) == {
        "b8_tok_s": 12.0,
        "b8_tok_s_low": 10.0,
        "b8_tok_s_high": 14.0,
        "note": "a",
        "ready_s": 3.0,
    }
    assert joined(rounds[:1]) == {"b8_tok_s": 10.0, "note": "a"}


def test_a_lead_is_one_in_every_round() -> None:
    ours = [{"b8_tok_s": 10.0, "ttft_1024_s": 2.0}, {"b8_tok_s": 14.0, "ttft_1024_s": 3.0}]
    theirs = [{"b8_tok_s": 8.0, "ttft_1024_s": 3.1}, {"b8_tok_s": 11.0, "ttft_1024_s": 4.9}]
    figures: dict[str, Any] = joined(ours)
    beside(figures, "vllm", joined(theirs))
    assert figures["vllm_b8_tok_s_ratio"] == 1.26  # 12 / 9.5
    assert figures["vllm_b8_tok_s_ahead"] is False
    assert figures["vllm_ttft_1024_s_ratio"] == 1.6  # 4 / 2.5
    assert figures["vllm_ttft_1024_s_ahead"] is True
    assert "vllm_b8_tok_s_low_ratio" not in figures
