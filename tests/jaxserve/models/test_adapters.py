"""Adapters of every family against peft (tests/golden/make_adapters.py)."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file
from tiny_weights import make

from checkpoints import open_checkpoint
from jaxserve.config import EngineConfig
from jaxserve.engine.device.adapters.slot_writer import SlotWriter
from jaxserve.engine.device.adapters.step_model import StepModel
from jaxserve.engine.device.cache_layout import CacheLayout
from jaxserve.engine.device.layer_groups import SplitModel
from jaxserve.engine.device.model_outline import outline
from jaxserve.engine.device.paged_cache import PagedLayerCache, allocate
from jaxserve.engine.startup.adapter_loading import AdapterLoader, adapter_layout
from jaxserve.engine.startup.loader import load_parameters
from jaxserve.engine.startup.stored_forms import stored_forms
from jaxserve.models.weights import AdapterRows

GOLDENS = Path(__file__).parents[2] / "golden"
FAMILIES = sorted(path.stem for path in (GOLDENS / "adapters").glob("*.npz"))
QUICK = ("llama3", "phi3", "mixtral")
NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]
F32 = jnp.dtype(jnp.float32)
BLOCK = 8


def write_base(name: str, folder: Path) -> None:
    """A family's model."""
    golden = np.load(GOLDENS / "families" / f"{name}.npz")
    folder.mkdir()
    (folder / "config.json").write_text(str(golden["config"]))
    shapes = json.loads(str(golden["tensors"]))
    save_file({n: make(n, tuple(s)) for n, s in shapes.items()}, folder / "model.safetensors")


def write_adapter(golden: Any, case: str, folder: Path) -> None:
    """An adapter as peft has saved it, with a copy of a table where peft saves one."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text(str(golden[f"config_{case}"]))
    tensors = {}
    for key, shape in json.loads(str(golden[f"tensors_{case}"])).items():
        table = key.removeprefix("base_model.model.").replace(".base_layer.", ".")
        tensors[key] = make(key if "lora_" in key else table, tuple(shape))
    save_file(tensors, folder / "adapter_model.safetensors")


def cases_of(golden: Any) -> list[str]:
    return [key.removeprefix("logits_") for key in golden.files if key.startswith("logits_")]


@pytest.mark.parametrize("on_cpu", [True, False], ids=["kernel", "xla"])
@pytest.mark.parametrize("name", NAMES)
def test_all_adapters_of_a_family_in_one_batch(
    name: str, on_cpu: bool, tmp_path: Path, record_property: Any
) -> None:
    """A row for each adapter and one for none, each with the merged weights' logits."""
    golden = np.load(GOLDENS / "adapters" / f"{name}.npz")
    plain = np.load(GOLDENS / "families" / f"{name}.npz")
    write_base(name, tmp_path / "base")
    cases = cases_of(golden)
    config = EngineConfig(
        max_loras=len(cases), max_lora_rank=256 if name == "llama2" else 32, max_model_len=None
    )
    checkpoint = open_checkpoint(tmp_path / "base")
    served = 32 if name == "phi3_short" else None
    model = outline(checkpoint.config, F32, served, stored_forms(checkpoint, False), packed=on_cpu)
    leaves = load_parameters(checkpoint, model, F32, progress=False)
    layers = len(model.cache_specs)
    layout = CacheLayout.choose(model.cache_specs, BLOCK, 64, 512)
    split = SplitModel.split(model, layout, range(layers, layers + 1))
    adapters = adapter_layout(config, model, F32, on_cpu)
    assert adapters is not None
    writer = SlotWriter(adapters, split.groups, split.split_params(leaves))
    loader = AdapterLoader(config, checkpoint, model, adapters, split.groups)
    digests = set()
    for slot, case in enumerate(cases):
        write_adapter(golden, case, tmp_path / case)
        adapter = loader.load(tmp_path / case)
        digests.add(adapter.digest)
        # Twice, so that what one leaves behind in a slot is seen.
        writer.write((slot + 1) % len(cases), adapter)
        writer.write(slot, adapter)
    for slot, case in enumerate(cases):
        writer.write(slot, loader.load(tmp_path / case))
    assert len(digests) == len(cases)
    ids = plain["ids_1"]
    got = forward(StepModel(split, adapters), writer, model, ids, len(cases) + 1)
    errors = {}
    for row, case in enumerate([*cases, None]):
        want = plain["logits_1"][-8:] if case is None else golden[f"logits_{case}"]
        errors[case] = np.abs(got[row] - want).max() / np.abs(want).max()
    record_property("largest relative error", f"{max(errors.values()):.1e}")
    assert max(errors.values()) < 1e-4, errors


def forward(
    own: StepModel, writer: SlotWriter, model: Any, ids: np.ndarray, rows: int
) -> np.ndarray:
    """The last logits [S, 8, V] of the same ids in so many rows, row n with the adapter of slot
    n."""
    length, width = len(ids), -(-len(ids) // BLOCK)
    blocks = np.arange(1, rows * width + 1, dtype=np.int32).reshape(rows, width)
    positions = np.tile(np.arange(length), rows)
    row = np.repeat(np.arange(rows), length)
    places = blocks[row, positions // BLOCK] * BLOCK + positions % BLOCK
    lens, starts = np.full(rows, length, np.int32), np.arange(rows + 1, dtype=np.int32) * length
    pages = allocate(model.cache_specs, rows * width + 1, BLOCK, F32)

    @partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def step(params: Any, slots: Any, tokens: Any) -> Any:
        adapters = AdapterRows.of(slots)
        caches = [
            PagedLayerCache(k, v, jnp.asarray(places), jnp.asarray(blocks), lens, starts, length)
            for k, v in pages
        ]
        x = own.embedding(params.outer, adapters).embedded(tokens)
        (group,), (leaves,) = own.model.groups, params.groups
        x = own.layers(group, leaves, adapters).run(group.layers, x, jnp.asarray(positions), caches)
        head = own.head(params.head, slots)
        return head.logits(head.norm(x))

    logits = step(writer.params, row.astype(np.int32), np.tile(ids, rows).astype(np.int32))
    return np.asarray(logits).reshape(rows, length, -1)[:, -8:]
