"""Embeddings against transformers: the head computes its logits from them."""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxserve.engine.frontend.llm import LLM
from jaxserve.sampling.params import SamplingParams


def test_embeddings_are_the_hidden_states_behind_the_logits(
    llm: LLM, prompts: list[list[int]], tiny_llama_golden: dict[str, Any]
) -> None:
    # In one batch, in chunks (a prompt is longer than a step), and read from the prefix cache.
    several = [prompts[i % len(prompts)] for i in range(11)]
    vectors = llm.embed(several)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    head = tiny_llama_golden["weight:lm_head.weight"].astype(np.float32)
    for i, vector in enumerate(vectors):
        expected = tiny_llama_golden[f"logits_{i % len(prompts)}"][-1]
        logits = head @ vector  # up to the length that was divided away
        scale = float(logits @ expected) / float(logits @ logits)
        assert scale > 0
        np.testing.assert_allclose(logits * scale, expected, atol=2e-3)


def test_embeddings_and_texts_share_steps(llm: LLM, prompts: list[list[int]]) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    before = llm.generate(prompts, params)
    llm.embed(prompts)
    after = llm.generate(prompts, params)
    assert [r.outputs[0].token_ids for r in after] == [r.outputs[0].token_ids for r in before]
    assert llm.core.stats.blocks_used == 0
