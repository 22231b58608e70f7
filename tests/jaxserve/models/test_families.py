"""Every family over the paged cache against transformers (tests/golden/make_families.py)."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers
from flax import nnx
from safetensors.numpy import save_file
from tiny_weights import make
from tokenizers.models import WordLevel

from jaxserve.config import EngineConfig
from jaxserve.engine.core.engine_core import EngineCore
from jaxserve.engine.core.protocol import Submit
from jaxserve.engine.device.model_outline import outline
from jaxserve.engine.device.paged_cache import PagedLayerCache, allocate
from jaxserve.sampling.params import SamplingParams
from jaxserve.text.tokenizer import load_tokenizer
from scheduler import Sequence
from tests.loaded_model import LoadedModel, load_model

GOLDENS = Path(__file__).parents[2] / "golden" / "families"
FAMILIES = sorted(path.stem for path in GOLDENS.glob("*.npz"))
QUICK = ("gemma3", "mixtral")
NAMES = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES]
F32 = jnp.dtype(jnp.float32)
BLOCK, WIDTH, TOKENS, CHUNK, NEW_TOKENS = 8, 8, 24, 7, 6


def load(
    name: str, folder: Path, packed: bool = False, columns: bool = False
) -> tuple[LoadedModel, list[np.ndarray], list[np.ndarray]]:
    """The model, and the ids [T] and logits [T, V] of three sequences."""
    golden = np.load(GOLDENS / f"{name}.npz")
    (folder / "config.json").write_text(str(golden["config"]))
    shapes = json.loads(str(golden["tensors"]))
    save_file({n: make(n, tuple(s)) for n, s in shapes.items()}, folder / "model.safetensors")
    # LongRoPE takes its short factors where no more than the original context is served.
    served = 32 if name == "phi3_short" else None
    model = load_model(folder, jnp.dtype(jnp.float32), served, packed=packed, columns=columns)
    return model, *([golden[f"{kind}_{i}"] for i in range(3)] for kind in ("ids", "logits"))


def run(
    model: LoadedModel, sequences: list[np.ndarray], kv_dtype: jnp.dtype = F32
) -> list[np.ndarray]:
    """Logits of sequences that share every step: prompts in chunks, then a token at a time.

    Batches are padded to TOKENS, with one padding row; blocks lie in reverse order.
    """
    rows = len(sequences) + 1
    blocks = np.arange(rows * WIDTH, 0, -1, dtype=np.int32).reshape(rows, WIDTH)
    pages = allocate(model.cache_specs, rows * WIDTH + 1, BLOCK, kv_dtype)

    # Halves the time to compile; the little arithmetic here doesn't get slower.
    @partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def step(leaves: Any, pages: Any, tokens: Any, positions: Any, *batch: Any) -> Any:
        module = nnx.merge(model.graphdef, jax.tree.unflatten(model.structure, leaves))
        slots, lens, starts = batch
        caches = [PagedLayerCache(k, v, slots, blocks, lens, starts, TOKENS) for k, v in pages]
        hidden = module(tokens, positions, caches)
        return module.logits(hidden), [(c.k_pages, c.v_pages) for c in caches]

    done = [0] * len(sequences)
    out: list[list[np.ndarray]] = [[] for _ in sequences]
    while any(n < len(ids) for n, ids in zip(done, sequences, strict=True)):
        tokens, positions = np.zeros((2, TOKENS), np.int32)
        slots = np.full(TOKENS, -1, np.int32)
        lens, starts = np.zeros(rows, np.int32), np.zeros(rows + 1, np.int32)
        counts = []
        for i, ids in enumerate(sequences):
            prompt = len(ids) - NEW_TOKENS
            wanted = min(CHUNK, prompt - done[i]) if done[i] < prompt else 1
            count = min(wanted, len(ids) - done[i])
            here = np.arange(done[i], done[i] + count)
            taken = slice(starts[i], starts[i] + count)
            tokens[taken], positions[taken] = ids[here], here
            slots[taken] = blocks[i][here // BLOCK] * BLOCK + here % BLOCK
            lens[i], starts[i + 1] = (done[i] + count) * (count > 0), taken.stop
            counts.append(count)
        starts[rows:] = starts[rows - 1]
        logits, pages = step(model.leaves, pages, tokens, positions, slots, lens, starts)
        for i, count in enumerate(counts):
            out[i].append(np.asarray(logits)[starts[i] : starts[i] + count])
            done[i] += count
    return [np.concatenate(parts) for parts in out]


@pytest.mark.parametrize("name", NAMES)
def test_logits_of_three_sequences_in_one_batch(
    name: str, tmp_path: Path, record_property: Any
) -> None:
    model, sequences, expected = load(name, tmp_path, columns=True)
    errors = [
        np.abs(got - want).max() / np.abs(want).max()
        for got, want in zip(run(model, sequences), expected, strict=True)
    ]
    record_property("largest relative error", f"{max(errors):.1e}")
    assert max(errors) < 1e-4, errors
    plain = outline(model.config, jnp.dtype(jnp.float32), None)
    for path, variable in nnx.to_flat_state(jax.tree.unflatten(plain.structure, plain.shapes)):
        assert len(variable.get_metadata("out_sharding")) == variable.ndim, path


@pytest.mark.parametrize("columns", [False, True])
def test_experts_kept_as_mxfp4_give_the_logits_of_widened_ones(
    columns: bool, tmp_path: Path
) -> None:
    model, sequences, expected = load("gpt_oss", tmp_path, packed=True, columns=columns)
    kinds = ("u1", "f4", "u4") if columns else ("u1", "f4")
    assert {np.dtype(leaf.dtype) for leaf in model.leaves} == {np.dtype(kind) for kind in kinds}
    for got, want in zip(run(model, sequences), expected, strict=True):
        assert np.abs(got - want).max() / np.abs(want).max() < 1e-4


def generate(
    core: EngineCore, prompts: list[list[int]], params: SamplingParams
) -> tuple[list[list[int]], int]:
    """The outputs, and the most blocks that were in use once no prompt was."""
    for i, prompt in enumerate(prompts):
        assert core.submit(Submit(str(i), prompt, params, frozenset())) is None
    got: list[list[int]] = [[] for _ in range(len(prompts) * params.n)]
    blocks = 0
    while core.has_work:
        for output in core.step():
            got[int(output.request_id) * params.n + output.index] += output.token_ids
        if all(got):
            blocks = max(blocks, core.stats.blocks_used)
    return got, blocks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "full", "windowed"), [("gemma3", 1, 2), ("gpt_oss", 1, 1), ("mistral", 0, 1)]
)
def test_the_engine_continues_as_transformers_does(
    name: str, full: int, windowed: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Windows, sinks and experts through the scheduler's own chunks, blocks and cache groups."""
    _, sequences, _ = load(name, tmp_path)
    hf = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(hf | {"warp": 1, "beyond": 2}))
    config = EngineConfig(
        max_num_seqs=4, max_num_batched_tokens=16, block_size=BLOCK, kv_cache_memory=2**20
    )
    words = {f"w{i}": i for i in range(1024)}
    tokenizers.Tokenizer(WordLevel(words)).save(str(tmp_path / "tokenizer.json"))
    core = EngineCore(config, tmp_path, load_tokenizer(tmp_path))
    (line,) = [r.getMessage() for r in caplog.records if "config.json" in r.getMessage()]
    assert line.endswith("ForCausalLM: beyond, warp")
    greedy = SamplingParams(temperature=0, max_tokens=NEW_TOKENS)
    prompts = [ids[:-NEW_TOKENS].tolist() for ids in sequences]
    wanted = [ids[-NEW_TOKENS:].tolist() for ids in sequences]
    assert generate(core, prompts, greedy)[0] == wanted
    assert core.stats.prefix_hits == 0
    # Again from the prefix cache: a window of 8 tokens touches two blocks, and a third is released
    # a step late.
    again, blocks = generate(core, prompts[-1:], greedy)
    assert again == wanted[-1:]
    assert core.stats.prefix_hits == (len(prompts[-1]) - 1) // BLOCK * BLOCK
    assert 0 < blocks <= full * -(-len(sequences[-1]) // BLOCK) + windowed * 3
    # Two choices share the prompt's last block, which is partial, until they write to it.
    assert len(prompts[1]) % BLOCK
    both = generate(core, prompts[1:2], SamplingParams(seed=5, n=2, max_tokens=20))[0]
    alone = [
        generate(core, prompts[1:2], SamplingParams(seed=s, max_tokens=20))[0][0] for s in (5, 6)
    ]
    core.close()
    assert both == alone
    assert alone[0] != alone[1]


class Guesses:
    """The true output, with every third token wrong."""

    def __init__(self, outputs: dict[tuple[int, ...], list[int]]) -> None:
        self._outputs = outputs

    def propose(self, sequence: Sequence, most: int) -> list[int]:
        true, known = self._outputs[tuple(sequence.request.prompt_token_ids)], sequence.num_tokens
        left = true[len(sequence.output_token_ids) :][:most]
        return [token + ((known + i) % 3 == 0) for i, token in enumerate(left)]

    def forget_ended(self) -> None:
        pass


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gemma3", "gpt_oss"])
def test_guesses_are_verified_with_windows_and_cache_groups(name: str, tmp_path: Path) -> None:
    _, sequences, _ = load(name, tmp_path)
    config = EngineConfig(
        max_num_seqs=4,
        max_num_batched_tokens=16,
        block_size=BLOCK,
        kv_cache_memory=2**20,
        speculation="ngram",
        num_speculative_tokens=3,
    )
    words = {f"w{i}": i for i in range(1024)}
    tokenizers.Tokenizer(WordLevel(words)).save(str(tmp_path / "tokenizer.json"))
    core = EngineCore(config, tmp_path, load_tokenizer(tmp_path))
    prompts = [ids[:-NEW_TOKENS].tolist() for ids in sequences]
    wanted = [ids[-NEW_TOKENS:].tolist() for ids in sequences]
    outputs = {tuple(p): w for p, w in zip(prompts, wanted, strict=True)}
    assert core._speculation is not None
    core._speculation._proposer = Guesses(outputs)
    greedy = SamplingParams(temperature=0, max_tokens=NEW_TOKENS)
    assert generate(core, prompts, greedy)[0] == wanted
    stats, used = core.report().speculation, core.stats.blocks_used
    core.close()
    assert stats is not None
    assert 0 < stats.accepted_tokens < stats.draft_tokens
    assert used == 0
