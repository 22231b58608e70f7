"""Adapters' stacks on a mesh: each device has its own heads' part, and the product is the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ON_A_MESH = """
import sys
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from checkpoints import open_checkpoint
from jaxserve.config import EngineConfig
from jaxserve.engine.device.model_outline import outline
from jaxserve.engine.startup.adapter_loading import adapter_layout
from jaxserve.models.sharding import shardings, stack_shardings
from jaxserve.models.weights import Adapted, AdapterRows, LowRank, Stack, linear, take

F32, SLOTS = jnp.dtype(jnp.float32), 3
checkpoint = open_checkpoint(Path(sys.argv[1]))
model = outline(checkpoint.config, F32, None)
abstract = jax.tree.unflatten(model.structure, model.shapes)
layout = adapter_layout(EngineConfig(max_loras=SLOTS, max_lora_rank=4), model, F32, False)
mesh = Mesh(np.array(jax.devices()), ("tensor",))
places, random = shardings(abstract, mesh), np.random.default_rng(0)
rows = AdapterRows.of(jnp.array([1, 3, 0, 2, 1, 3, 0], jnp.int32))
cut = 0
for (path, is_table), shape in layout.shapes.items():
    if path[:2] == ("layers", 1):
        continue  # like the first layer
    sizes = np.bincount(shape.owner).tolist()
    stacks = []
    for slot in range(SLOTS):
        parts = [
            LowRank(
                random.standard_normal((r, shape.inputs)).astype(np.float32),
                random.standard_normal((size, r)).astype(np.float32),
            )
            for size, r in zip(sizes, (3, 1, 4))
        ]
        stacks.append(shape.packed([parts]))
    whole = jax.tree.map(lambda *a: jnp.concatenate(a), *stacks)
    source = checkpoint.parameters()[path]
    base = jnp.asarray(checkpoint.parameter(path))
    own = stack_shardings(shape, SLOTS, mesh)
    placed = jax.tree.map(jax.device_put, whole, own)
    on_mesh = jax.device_put(base, places[path])
    if is_table:
        ids = jnp.array([3, 7, 200, 3, 100, 0, 271])
        f = jax.jit(lambda w, s: take(Adapted(w, s, rows), ids, F32))
    else:
        x = jnp.asarray(random.standard_normal((7, shape.inputs)), jnp.float32)
        inputs = base.shape[len(shape.outputs):]
        f = jax.jit(lambda w, s: linear(x.reshape(7, *inputs), Adapted(w, s, rows)))
    want, got = f(base, whole), f(on_mesh, placed)
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-4, atol=1e-4)
    plain = linear(x.reshape(7, *inputs), base) if not is_table else take(base, ids, F32)
    for row, slot in enumerate(np.asarray(rows.slots)):
        same = np.allclose(np.asarray(want)[row], np.asarray(plain)[row], atol=1e-6)
        assert same == (slot == SLOTS), (path, row)
    for leaf in jax.tree.leaves(placed):
        cut += leaf.addressable_shards[0].data.size * 2 == leaf.size and leaf.size > 0
    if path[-1] == "qkv":  # each device has the second matrices of its own kv heads
        for shard in placed.up.addressable_shards:
            head = shard.device.id
            np.testing.assert_array_equal(
                np.asarray(shard.data), np.asarray(whole.up)[:, :, head : head + 1]
            )
print(cut)
"""


@pytest.mark.slow
def test_two_devices_hold_the_parts_of_their_own_heads(tiny_llama: Path) -> None:
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    command = [sys.executable, "-c", ON_A_MESH, str(tiny_llama)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    # Of a layer: qkv and gate_up along their outputs, out and down along their inputs; the
    # head along its outputs, the embedding along its rows.
    assert done.stdout.split() == ["6"]
