"""An engine in this process, driven step by step, and how to make its logits NaN."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from jaxserve.engine.core.protocol import Output
from jaxserve.engine.frontend.llm import LLM
from jaxserve.sampling.params import SamplingParams


def submit(llm: LLM, name: str, prompt: list[int], params: SamplingParams) -> None:
    assert llm.core.submit(llm._validator.submission(name, prompt, params)) is None


def drain(llm: LLM) -> list[Output]:
    """The outputs of all steps until nothing is left to do."""
    outputs = []
    while llm.core.has_work:
        outputs += llm.core.step()
    return outputs


def tokens_of(outputs: list[Output], name: str) -> list[int]:
    return [t for output in outputs if output.request_id == name for t in output.token_ids]


@contextmanager
def embedding_of_nan(llm: LLM, golden: dict[str, Any], token: int) -> Iterator[None]:
    """While the context is open, the tiny Llama's embedding of one token is NaN, and so are all
    logits after it."""
    outer = llm.core._runner._params.outer
    table = golden["weight:model.embed_tokens.weight"].astype(np.float32)
    leaf = next(i for i, array in enumerate(outer) if np.array_equal(array, table))
    whole, outer[leaf] = outer[leaf], outer[leaf].at[token].set(np.nan)
    try:
        yield
    finally:
        outer[leaf] = whole


def check_one_request_fails_of_nan(
    llm: LLM,
    golden: dict[str, Any],
    params: SamplingParams,
    prompts: list[list[int]],
    outputs: list[list[int]],
) -> None:
    """Two requests run together, and logits are NaN after a token that the second one alone has:
    it fails there, and the first one isn't changed.

    Args:
        prompts, outputs: of the two, and what each of them gets alone.
    """
    good, bad = outputs
    place = next(i for i in range(2, 24) if bad[i] not in {*bad[:i], *good, *prompts[1]})
    with embedding_of_nan(llm, golden, bad[place]):
        submit(llm, "good", prompts[0], params)
        submit(llm, "bad", prompts[1], params)
        found = drain(llm)
    assert tokens_of(found, "good") == good
    assert tokens_of(found, "bad") == bad[: place + 1]
    assert [o.request_id for o in found if o.error] == ["bad"]
    assert llm.core.stats.blocks_used == 0
