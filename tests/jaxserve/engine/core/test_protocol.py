"""Outputs of several turns, joined."""

from __future__ import annotations

from jaxserve.engine.core.protocol import Output, join_tokens


def test_only_outputs_with_nothing_but_tokens_of_the_same_choice_are_joined() -> None:
    first = Output("a", [1], cached_tokens=0)
    end = Output("a", [5], "length")
    other = Output("a", [9], index=1)
    outputs = [first, Output("a", [2]), other, Output("b", [7]), Output("a", [3, 4])]
    joined = join_tokens([*outputs, Output("b", [8]), end, Output("b", [], error="it failed")])
    assert joined == [
        first,
        Output("a", [2, 3, 4]),
        other,
        Output("b", [7, 8]),
        end,
        Output("b", [], error="it failed"),
    ]
