"""Bias, masks and penalties on the device against their definitions in NumPy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxserve.sampling.logit_processors import SamplingTables, bias_row, count, counts_row, process
from jaxserve.sampling.masks import pack_mask
from jaxserve.sampling.params import SamplingParams
from jaxserve.sampling.row_settings import pack, unpack

VOCAB, SLOTS = 70, 4  # a vocabulary that fills no whole number of mask words

tokens = st.integers(0, VOCAB - 1)
requests = st.fixed_dictionaries(
    {
        "prompt": st.lists(tokens, min_size=1, max_size=20),
        "outputs": st.lists(tokens, max_size=20),
        "bias": st.dictionaries(tokens, st.floats(-100, 100, width=32), max_size=5),
        "allowed": st.none() | st.sets(tokens, min_size=1),
        "repetition": st.sampled_from([1.0, 0.5, 1.3, 2.0]),
        "presence": st.sampled_from([0.0, -1.0, 0.7]),
        "frequency": st.sampled_from([0.0, -0.5, 1.5]),
    }
)


def defined(logits: np.ndarray, request: dict[str, Any]) -> np.ndarray:
    """The definition, one token at a time."""
    out = logits.astype(np.float64)
    for token in range(VOCAB):
        out[token] += request["bias"].get(token, 0.0)
        if request["allowed"] is not None and token not in request["allowed"]:
            out[token] = -np.inf
            continue
        if token in request["prompt"] or token in request["outputs"]:
            positive = out[token] > 0
            out[token] *= 1 / request["repetition"] if positive else request["repetition"]
        times = request["outputs"].count(token)
        out[token] -= request["frequency"] * times + request["presence"] * (times > 0)
    return out


def params_of(request: dict[str, Any]) -> SamplingParams:
    return SamplingParams(
        logit_bias=request["bias"],
        repetition_penalty=request["repetition"],
        presence_penalty=request["presence"],
        frequency_penalty=request["frequency"],
    )


@jax.jit
def run(
    logits: jax.Array, ints: jax.Array, floats: jax.Array, slots: jax.Array, tables: SamplingTables
) -> jax.Array:
    return process(logits, unpack(ints, floats, slots, jnp.zeros_like(slots)), tables)


@settings(max_examples=60)
@given(st.lists(requests, min_size=SLOTS, max_size=SLOTS), st.permutations(range(SLOTS)))
def test_each_row_is_processed_by_its_own_settings(
    batch: list[dict[str, Any]], slots: list[int]
) -> None:
    logits = np.random.default_rng(len(batch[0]["prompt"])).normal(0, 3, (SLOTS, VOCAB))
    tables = [np.full(t.shape, 7, np.int32) for t in SamplingTables.allocate(SLOTS, VOCAB)]
    counts, masks, bias = tables  # slots without processors keep arbitrary contents
    packed = []
    for slot, request in zip(slots, batch, strict=True):
        counts[slot] = counts_row(request["prompt"], request["outputs"], VOCAB)
        if request["allowed"] is not None:
            masks[slot] = pack_mask(np.isin(np.arange(VOCAB), list(request["allowed"])))
        if request["bias"]:
            bias[slot] = bias_row(request["bias"], VOCAB)
        packed.append(pack(params_of(request), 0, request["allowed"] is not None))
    ints, floats = map(np.stack, zip(*packed, strict=True))
    out = run(logits.astype(np.float32), ints, floats, np.array(slots), SamplingTables(*tables))
    expected = [defined(row, r) for row, r in zip(logits.astype(np.float32), batch, strict=True)]
    np.testing.assert_allclose(np.asarray(out), expected, rtol=1e-5, atol=1e-4)


@settings(max_examples=50)
@given(st.lists(tokens, min_size=1), st.lists(tokens))
def test_counts_kept_by_the_step_equal_those_from_the_tokens(
    prompt: list[int], drawn: list[int]
) -> None:
    counts = jnp.asarray(np.stack([counts_row(prompt, [], VOCAB)] * 2))
    for token in drawn[:10]:
        kept = jnp.array([True, False])
        counts = count(counts, jnp.array([0, 1]), jnp.array([token, token]), kept)
    np.testing.assert_array_equal(counts[0], counts_row(prompt, drawn[:10], VOCAB))
    np.testing.assert_array_equal(counts[1], counts_row(prompt, [], VOCAB))


def test_prompt_ids_in_the_models_padding_are_not_counted() -> None:
    assert counts_row([VOCAB, VOCAB + 5, 3], [], VOCAB).nonzero()[0].tolist() == [3]
