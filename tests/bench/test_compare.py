"""bench.peers.compare: engines that are not installed, and records of several rounds."""

from __future__ import annotations

from bench.peers.compare.engines import Engine
from bench.peers.compare.records import Record, Results


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


def test_a_lead_is_one_in_every_round() -> None:
    def record(engine: str, tok_s: float, ttft_ms: float, seed: int) -> Record:
        figures = {"output_tok_s": tok_s, "ttft_ms": ttft_ms}
        return Record(engine, "concurrency", 4, seed, figures, commit="abc1234")

    results = Results(
        [
            *(record("jaxserve float32", 20.0, 100.0, 0), record("jaxserve float32", 24.0, 150, 1)),
            *(record("near", 19.0, 90.0, 0), record("near", 21.0, 160.0, 1)),
            *(record("far", 10.0, 151.0, 0), record("far", 19.9, 400.0, 1)),
        ]
    )
    ours = "jaxserve float32"
    assert results.ahead(ours, "concurrency", 4, "output_tok_s", higher=True) == ["far"]
    assert results.ahead(ours, "concurrency", 4, "ttft_ms", higher=False) == ["far"]
    assert results.ahead("near", "concurrency", 4, "ttft_ms", higher=False) == []
    assert results.commits() == ["abc1234"]
