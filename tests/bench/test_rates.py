"""How bench/peers/rates.py counts tokens and times them; a fake engine advances the clock."""

from __future__ import annotations

import pytest

from bench.peers import rates
from bench.peers.rates import Generate, Job, OnToken, measure


class Clock:
    now = 0.0

    def perf_counter(self) -> float:
        return self.now


def engine(clock: Clock, lost: int = 0) -> Generate:
    """Prompts take 1 s each, one after another; then each step of 0.5 s gives rows a token."""

    def generate(prompts: list[list[int]], answers: list[int], on_token: OnToken) -> None:
        for row in range(len(prompts)):
            clock.now += 1.0
            on_token(row)
        for step in range(1, max(answers) - lost):
            clock.now += 0.5
            for row, answer in enumerate(answers):
                if step < answer:
                    on_token(row)

    return generate


JOB = Job("none", "float32", [2], prompt=4, tokens=6, ttft_prompt=8, trace=[(3, 1), (5, 3)])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    ours = Clock()
    monkeypatch.setattr(rates, "time", ours)
    return ours


def test_decoding_is_counted_from_when_every_row_has_begun(clock: Clock) -> None:
    figures = {k: v for each in measure(JOB, engine(clock)) for k, v in each.items()}
    assert figures == {
        "ttft_8_s": 1.0,
        "b2_tok_s": round(12 / (2 * 1.0 + 5 * 0.5), 1),
        "b2_decode_tok_s": 10 / (5 * 0.5),
        "trace_tok_s": round(4 / (2 * 1.0 + 2 * 0.5), 1),
    }


def test_an_engine_that_loses_tokens_gets_no_figure(clock: Clock) -> None:
    with pytest.raises(RuntimeError, match="10 tokens came, not 12"):
        list(measure(JOB, engine(clock, lost=1)))


def test_every_shape_runs_once_before_it_is_measured(clock: Clock) -> None:
    seen: list[tuple[list[int], int]] = []  # lengths of prompts, longest answer

    def generate(prompts: list[list[int]], answers: list[int], on_token: OnToken) -> None:
        seen.append(([len(prompt) for prompt in prompts], max(answers)))
        engine(clock)(prompts, answers, on_token)

    list(measure(JOB, generate))
    assert seen[:3] == [([8], 1), ([4, 4], 4), ([3, 5], 3)]
    assert seen[3:] == [([8], 1)] * 3 + [([4, 4], 6), ([3, 5], 3)]
