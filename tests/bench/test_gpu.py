"""bench.kernels.gpu runs from start to end on a CPU, at small sizes."""

from __future__ import annotations

import json

import pytest

from bench.kernels import gpu


@pytest.mark.slow
def test_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.run(list(gpu.PARTS), limit=600, dry_run=True) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["failures"] == ""
    assert figures["error_bf16"] < 2e-2
    for batch in (1, 4):
        assert figures[f"model_decode_{batch}_over_limit_ratio"] > 0
        assert 0 <= figures[f"model_decode_{batch}_idle_share"] < 1
    assert figures["model_prefill_matmul_rate_share"] > 0
    assert figures["sampler_greedy_1_ms"] > 0


def test_a_part_without_time_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.run(["sampler"], limit=-1, dry_run=True) == 1
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["failures"] == "sampler: no time left"
