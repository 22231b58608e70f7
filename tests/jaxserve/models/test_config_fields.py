"""Every field of a config.json against transformers: the table of marks has each field of its
configuration classes, and a changed value of an honoured one changes the logits as there."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import save_file
from tiny_weights import make

from jaxserve.engine.device.paged_cache import PagedLayerCache, allocate
from jaxserve.errors import UnsupportedModelError
from jaxserve.models.config_fields import FAMILY_FIELDS
from jaxserve.models.registry import ARCHITECTURES, config_from_hf
from tests.loaded_model import load_model

GOLDEN = Path(__file__).parents[2] / "golden"
RECORDED = json.loads((GOLDEN / "config_fields.json").read_text())
FAMILIES: dict[str, Any] = RECORDED["families"]
CHANGED = sorted((GOLDEN / "changed_fields").glob("*.npz"))
QUICK = ("gpt_oss", "llama")
# The engine's: they end outputs and bound sequences. LongRoPE alone computes with the context's
# length, so Phi-3's golden changes it.
NOT_IN_LOGITS = {"bos_token_id", "eos_token_id", "max_position_embeddings"}
SIZES = {
    "vocab_size": 64,
    "hidden_size": 512,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
    "max_position_embeddings": 128,
}

# Of fields whose default isn't implemented: a file has to have them.
NEEDED: dict[str, dict[str, Any]] = {
    "GraniteMoeHybridForCausalLM": {"num_local_experts": 0, "layer_types": ["attention"] * 4}
}

# Values of the right kind that aren't implemented, where "another" isn't of it.
OTHERS = {
    "attn_logit_softcapping": 20.0,
    "num_local_experts": 4,
    "layer_types": ["mamba", "attention", "attention", "attention"],
}


def test_every_family_is_recorded_and_marked() -> None:
    assert ARCHITECTURES.keys() == FAMILIES.keys() == FAMILY_FIELDS.keys()


@pytest.mark.parametrize("architecture", sorted(FAMILIES))
def test_every_field_of_the_configuration_class_is_marked_and_has_its_default(
    architecture: str,
) -> None:
    fields, recorded = FAMILY_FIELDS[architecture], FAMILIES[architecture]["fields"]
    marks = fields.marks()
    assert (recorded.keys() | set(RECORDED["common"])) - marks.keys() == set()
    for name, value in fields.honoured.items():
        assert value == recorded[name], name
    for name, known in fields.refused.items():
        implemented = not recorded[name] or recorded[name] in known
        assert implemented or name in NEEDED[architecture], name


@pytest.mark.parametrize("architecture", sorted(FAMILIES))
def test_a_file_without_optional_fields_is_read_as_transformers_reads_it(architecture: str) -> None:
    """Its defaults written out, and the rope that an instance of the class has."""
    family = FAMILIES[architecture]
    short = {"architectures": [architecture], **SIZES, **NEEDED.get(architecture, {})}
    # null has another meaning in some fields than being absent.
    written = {k: v for k, v in family["fields"].items() if v is not None and "token_id" not in k}
    whole = {**written, **short, "rope_parameters": family["rope_parameters"]}
    assert config_from_hf(short) == config_from_hf(whole)


@pytest.mark.parametrize("architecture", sorted(NEEDED))
def test_a_file_has_to_have_fields_whose_default_is_not_implemented(architecture: str) -> None:
    whole = {"architectures": [architecture], **SIZES, **NEEDED[architecture]}
    for name in NEEDED[architecture]:
        with pytest.raises(UnsupportedModelError, match=f"{name} is missing"):
            config_from_hf({k: v for k, v in whole.items() if k != name})


def test_unknown_fields_are_kept_for_the_log() -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        **SIZES,
        "torch_dtype": "bfloat16",
        "use_fancy_attention": True,
        "rope_scaling": {"rope_type": "linear", "factor": 2.0, "warp": 3},
        "another": None,
    }
    assert config_from_hf(config).unknown_fields == (
        *("another", "rope_scaling.warp", "use_fancy_attention"),
    )


@pytest.mark.parametrize("architecture", sorted(FAMILIES))
def test_a_refused_field_is_named(architecture: str) -> None:
    config = {"architectures": [architecture], **SIZES}
    fields = FAMILY_FIELDS[architecture]
    refused = [name for name, mark in fields.marks().items() if mark == "refused"]
    assert "is_encoder_decoder" in refused
    for name in refused:
        with pytest.raises(UnsupportedModelError, match=name):
            config_from_hf(config | {name: OTHERS.get(name, "another")})


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(p, id=p.stem, marks=() if p.stem in QUICK else pytest.mark.slow)
        for p in CHANGED
    ],
)
def test_a_changed_field_changes_the_logits_as_in_transformers(path: Path, tmp_path: Path) -> None:
    golden = np.load(path)
    configs, tensors = (json.loads(str(golden[name])) for name in ("configs", "tensors"))
    (architecture,) = configs[""]["architectures"]
    fields = FAMILY_FIELDS[architecture]
    honoured = {name for name, mark in fields.marks().items() if mark == "honoured"}
    assert honoured - configs.keys() <= NOT_IN_LOGITS
    errors = {}
    for (change, config), expected in zip(configs.items(), golden["logits"], strict=True):
        (tmp_path / "config.json").write_text(json.dumps(config))
        weights = {n: make(n, tuple(shape)) for n, shape in tensors[change].items()}
        save_file(weights, tmp_path / "model.safetensors")
        got = last_logits(tmp_path, golden["ids"])
        size = np.abs(expected).max()
        errors[change] = float(np.abs(got - expected[: len(got)]).max() / size)
    assert all(error < 1e-4 for error in errors.values()), errors


def last_logits(folder: Path, ids: np.ndarray) -> np.ndarray:
    """Logits [V] after a prompt, of a model run as one step over pages."""
    model, count = load_model(folder, jnp.dtype(jnp.float32)), len(ids)
    pages = allocate(model.cache_specs, 2, 32, jnp.dtype(jnp.float32))

    # As in test_families.py: halves the time to compile.
    @partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def step(leaves: Any, pages: Any, tokens: jax.Array) -> jax.Array:
        module = nnx.merge(model.graphdef, jax.tree.unflatten(model.structure, leaves))
        positions = jnp.arange(count)
        batch = (32 + positions, jnp.array([[1]]), jnp.array([count]), jnp.array([0, count]))
        caches = [PagedLayerCache(k, v, *batch, count) for k, v in pages]
        return module.logits(module(tokens, positions, caches)[-1:])[0]

    return np.asarray(step(model.leaves, pages, ids))
