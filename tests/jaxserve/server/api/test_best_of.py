from __future__ import annotations

from jaxserve.outputs import CompletionDelta, TokenLogprobs
from jaxserve.server.api.shared.generation import best_choices


def test_the_best_choices_have_the_highest_mean_logprob() -> None:
    def output(index: int, *logprobs: float) -> CompletionDelta:
        entries = tuple(TokenLogprobs(0, value, 1, ()) for value in logprobs)
        return CompletionDelta(index, "", (0,) * len(entries), "stop", None, entries)

    made = [output(0, -3.0), output(1, -1.0, -1.0), output(2, -2.0), output(3, -0.5)]
    kept = best_choices(made, 2, 1)
    assert [o.index for o in kept] == [0, 1]
    assert [len(o.token_ids) for o in kept] == [2, 1]
    assert kept[1].logprobs == made[3].logprobs
