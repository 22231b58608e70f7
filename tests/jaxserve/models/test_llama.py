"""Llama over the paged cache against transformers' logits, position by position."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import checkpoints
from jaxserve.engine.device.paged_cache import PagedLayerCache, allocate
from jaxserve.errors import UnsupportedModelError
from jaxserve.models.registry import model_class
from tests.loaded_model import LoadedModel, load_model

GOLDEN = Path(__file__).parents[2] / "golden"
BLOCK = 16


def all_logits(model: LoadedModel, prompt: np.ndarray, chunk: int) -> np.ndarray:
    """Logits [T, V] of a prompt that is computed in chunks, its blocks in reverse order."""
    blocks = -(-len(prompt) // BLOCK)
    table = np.arange(blocks, 0, -1, dtype=np.int32)
    pages = allocate(model.cache_specs, blocks + 1, BLOCK, jnp.dtype(jnp.float32))

    @jax.jit
    def step(leaves: Any, pages: Any, tokens: Any, positions: Any, slots: Any, end: Any) -> Any:
        module = nnx.merge(model.graphdef, jax.tree.unflatten(model.structure, leaves))
        starts = jnp.array([0, tokens.shape[0]], jnp.int32)
        caches = [
            PagedLayerCache(k, v, slots, table[None], end[None], starts, tokens.shape[0])
            for k, v in pages
        ]
        hidden = module(tokens, positions, caches)
        return module.logits(hidden), [(c.k_pages, c.v_pages) for c in caches]

    out = []
    for start in range(0, len(prompt), chunk):
        positions = np.arange(start, min(start + chunk, len(prompt)), dtype=np.int32)
        slots = table[positions // BLOCK] * BLOCK + positions % BLOCK
        logits, pages = step(
            model.leaves, pages, prompt[positions], positions, slots, positions[-1] + 1
        )
        out.append(np.asarray(logits))
    return np.concatenate(out)


def relative_error(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.abs(got - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize(
    "chunk",
    [1, pytest.param(7, marks=pytest.mark.slow), pytest.param(1000, marks=pytest.mark.slow)],
)
def test_tiny_llama_in_chunks(
    tiny_llama: Path, tiny_llama_golden: dict[str, Any], chunk: int
) -> None:
    model = load_model(tiny_llama, jnp.dtype(jnp.float32))
    prompt, expected = tiny_llama_golden["prompt_2"], tiny_llama_golden["logits_2"]
    assert relative_error(all_logits(model, prompt.astype(np.int32), chunk), expected) < 1e-4


@pytest.mark.slow
def test_demo_model_logits_of_200_tokens(demo_model: Path) -> None:
    golden = np.load(GOLDEN / "smollm2_logits.npz")
    model = load_model(demo_model, jnp.dtype(jnp.float32))
    logits = all_logits(model, golden["ids"].astype(np.int32), 200)
    assert relative_error(logits[-1], golden["last"]) < 1e-3
    errors = np.abs(logits[:, golden["columns"]] - golden["sampled"]).max(axis=1)
    assert (errors / np.abs(golden["sampled"]).max(axis=1)).max() < 1e-3
    np.testing.assert_array_equal(logits.argmax(axis=1), golden["argmax"])


@pytest.mark.slow
def test_gemma3_past_its_window() -> None:
    """The GGUF file as transformers reads it (tests/golden/make_gemma3.py); the window is 512."""
    golden = np.load(GOLDEN / "gemma3_logits.npz")
    model = load_model(checkpoints.pull("gemma3-270m"), jnp.dtype(jnp.float32))
    logits = all_logits(model, golden["ids"].astype(np.int32), 320)
    np.testing.assert_array_equal(logits.argmax(axis=1), golden["argmax"])
    got = logits[golden["positions"]][:, golden["columns"]]
    assert relative_error(got, golden["sampled"]) < 1e-3
    assert relative_error(logits.max(axis=1), golden["max"]) < 1e-3


def test_parameters_carry_one_logical_axis_a_dimension(tiny_llama: Path) -> None:
    model = load_model(tiny_llama, jnp.dtype(jnp.float32))
    state = jax.tree.unflatten(model.structure, model.leaves)
    for path, variable in nnx.to_flat_state(state):
        assert len(variable.get_metadata("out_sharding")) == variable.ndim, path


def test_unknown_architectures_are_refused_with_what_is_supported() -> None:
    with pytest.raises(UnsupportedModelError, match=r"Mamba.*supported: Gemma2ForCausalLM.*Llama"):
        model_class("MambaForCausalLM")
