"""bench.kernels.gpu goes its whole way on a CPU: what a GPU then runs has been run before."""

from __future__ import annotations

import json

import pytest

from bench.kernels import gpu


@pytest.mark.slow
def test_dry_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.run(list(gpu.PARTS), limit=600, dry_run=True) == 0
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["broken"] == ""
    assert figures["error_bf16"] < 2e-2
    for batch in (1, 4):
        assert figures[f"model_decode_{batch}_over_floor"] > 0
        assert 0 <= figures[f"model_decode_{batch}_idle_share"] < 1
    assert figures["model_prefill_matmul_share"] > 0
    assert figures["sampler_greedy_1_ms"] > 0


def test_a_part_without_time_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.run(["sampler"], limit=-1, dry_run=True) == 1
    figures = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert figures["broken"] == "sampler: no time left"
