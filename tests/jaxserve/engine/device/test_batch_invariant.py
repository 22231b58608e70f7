"""On a CPU a request's bits don't depend on the other rows of its batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxserve.engine.frontend.llm import LLM
from jaxserve.models.layers import linear
from jaxserve.outputs import CompletionOutput
from jaxserve.sampling.params import SamplingParams
from pallas_kernels import page_shape, paged_attention


@pytest.fixture(scope="module")
def engine(tiny_llama: Path, llm: LLM, llm_settings: dict[str, Any]) -> Iterator[LLM]:
    blocks = 12 * (2**20 // llm.core.ready.num_blocks)  # so few that requests are preempted
    settings = llm_settings | {"kv_cache_memory": blocks}
    engine = LLM(str(tiny_llama), progress=False, **settings)
    yield engine
    assert engine.core.compiles == 0
    engine.core.close()


def bits(output: CompletionOutput) -> tuple[Any, ...]:
    """The tokens, and every logprob that was asked for."""
    return output.token_ids, output.logprobs, output.finish_reason


@pytest.mark.slow
def test_alone_in_a_batch_preempted_and_from_the_cache(
    engine: LLM, prompts: list[list[int]]
) -> None:
    base = SamplingParams(max_tokens=24, ignore_eos=True, logprobs=2)
    kinds = [
        replace(base, temperature=0.0),
        replace(base, seed=1),
        replace(base, seed=2, top_k=5, presence_penalty=0.5),
        replace(base, seed=3, top_p=0.8, max_tokens=7),
        replace(base, seed=4, min_p=0.02, repetition_penalty=1.2),
    ]
    jobs = [(prompts[i % len(prompts)], kinds[i % len(kinds)]) for i in range(12)]
    before = engine.core.stats.preemptions
    together = engine.generate([p for p, _ in jobs], [k for _, k in jobs])
    assert engine.core.stats.preemptions > before
    for (prompt, params), shared in zip(jobs, together, strict=True):
        (alone,) = engine.generate([prompt], params)
        assert bits(shared.outputs[0]) == bits(alone.outputs[0])


def test_a_linear_row_alone_is_of_the_rows_own_type() -> None:
    kernel = jnp.ones((3, 8), jnp.float32)
    for tokens in (1, 2):
        assert linear(jnp.ones((tokens, 8), jnp.bfloat16), kernel).dtype == jnp.bfloat16


def test_a_linear_row_does_not_depend_on_the_others() -> None:
    random = np.random.default_rng(0)
    for inputs, outputs in ((64, 96), (576, 192), (1536, 576), (2048, 64)):
        kernel = random.standard_normal((outputs, inputs)).astype(np.float32)
        row = random.standard_normal(inputs).astype(np.float32)
        seen = set()
        for tokens in (1, 2, 8, 16, 32, 64, 128):
            x = random.standard_normal((tokens, inputs)).astype(np.float32)
            x[tokens // 2] = row
            seen.add(np.asarray(jax.jit(linear)(x, kernel))[tokens // 2].tobytes())
        assert len(seen) == 1, (inputs, outputs)


@pytest.mark.parametrize(
    ("group", "head_dim"),
    [
        pytest.param(1, 32, marks=pytest.mark.slow),
        (3, 32),
        pytest.param(4, 256, marks=pytest.mark.slow),
    ],
)
def test_attention_of_a_token_does_not_depend_on_how_it_comes(group: int, head_dim: int) -> None:
    """As a decode, or as the end of chunks of several lengths."""
    random = np.random.default_rng(0)
    kv_heads, context, width = 2, 300, 20
    shape = page_shape(width + 1, kv_heads, 16, head_dim)
    k_pages, v_pages = (jnp.asarray(random.standard_normal(shape), jnp.float32) for _ in "kv")
    query = random.standard_normal((64, kv_heads * group, head_dim)).astype(np.float32)
    table = np.zeros((4, width), np.int32)
    table[0] = np.arange(1, width + 1)
    seen = set()
    for chunk in (1, 2, 5, 33, 64):
        starts = np.full(5, chunk, np.int32)
        starts[0] = 0
        out = paged_attention(
            np.roll(query, chunk, axis=0),  # the last query comes at chunk - 1
            k_pages,
            v_pages,
            table,
            np.array([context, 0, 0, 0], np.int32),
            starts,
            scale=0.2,
            max_query_len=chunk,
            implementation="xla",
        )
        seen.add(np.asarray(out)[chunk - 1].tobytes())
    assert len(seen) == 1
