"""Replays recorded steps on our runner's compiled programs."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors.numpy import save_file

import checkpoints
from bench.twin.cases import Sizes, record
from bench.twin.record import Prompts, Recorded, Recorder, sharegpt_like
from bench.twin.trace import PackedStep, peak_resident_mib, random_pages, save
from jaxserve import LLM, SamplingParams
from jaxserve.engine.device.model_outline import outline
from jaxserve.models.config import ModelConfig
from jaxserve.models.rope import inverse_frequencies

SEQS, BUDGET = 32, 1024
KV_TOKENS = 36_864  # 32 sequences of 1,024 tokens, what they answer, and more


@dataclass(frozen=True, slots=True)
class Replay:
    """What a runner sampled and how long it took.

    Args:
        ids: of each step, [S].
        seconds: [passes, steps], from the host's arrays to the sampled ids on the host.
    """

    ids: list[np.ndarray]
    seconds: np.ndarray


class OurRunner:
    """The programs, parameters and state of an engine, without its loop."""

    def __init__(self, llm: LLM) -> None:
        self._runner: Any = llm.core._runner

    @property
    def _pages(self) -> list[tuple[jax.Array, jax.Array]]:
        pages: list[tuple[jax.Array, jax.Array]] = self._runner._state.pages
        return pages

    def fill_pages(self) -> None:
        """Fills every layer's pages with random_pages()."""
        pages = self._pages
        blocks, heads, size, dim = pages[0][0].shape
        k, v = (
            x.reshape(blocks, size, heads, dim).swapaxes(1, 2)
            for x in random_pages(blocks * size, heads, dim)
        )
        for i, (old_k, old_v) in enumerate(pages):
            dtype = old_k.dtype
            old_k.delete()
            old_v.delete()
            pages[i] = (jnp.array(k, dtype), jnp.array(v, dtype))

    def replay(self, steps: Sequence[Recorded], passes: int) -> Replay:
        """Runs the steps `passes` times, after one warm-up unless passes is 1."""
        runner, warm = self._runner, passes > 1
        seconds = []
        for _ in range(passes + warm):
            ids, taken = [], []
            last = jax.device_put(np.zeros(runner._state.last_tokens.shape, np.int32))
            state = runner._state._replace(last_tokens=last)
            for step in steps:
                state = state._replace(block_tables=jax.device_put(step.block_tables))
                begin = time.perf_counter()
                run = runner._steps[step.bucket, False]
                state, layers = run.layers(runner._params, state, step.ints)
                state, output = run.sample(runner._params, state, layers)
                ids.append(np.asarray(output.ids)[: step.rows])
                taken.append(time.perf_counter() - begin)
            runner._state = state
            seconds.append(taken)
        return Replay(ids, np.array(seconds[warm:]))

    @property
    def weight_bytes(self) -> int:
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self._runner._params))

    @property
    def page_bytes(self) -> int:
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self._pages))

    @property
    def pool_shape(self) -> tuple[int, int]:
        """Blocks in the pool, and tokens a block."""
        blocks, _, size, _ = self._pages[0][0].shape
        return blocks, size


def export(model: Path, folder: Path) -> dict[str, Any]:
    """Writes a Llama model's parameters as model.safetensors, in float32 and our shapes, and
    returns what else PyTorch needs to build it.

    Raises:
        ValueError: it isn't a plain Llama.
    """
    checkpoint = checkpoints.open_checkpoint(model)
    config = checkpoint.config
    check_plain(config)
    shape = outline(config, jnp.dtype("float32"), None)
    abstract = jax.tree.unflatten(shape.structure, shape.shapes)
    save_file(
        {
            ".".join(map(str, path)): np.ascontiguousarray(checkpoint.parameter(path), np.float32)
            for path, _ in nnx.to_flat_state(abstract)
        },
        folder / "model.safetensors",
    )
    rope = config.layers[0].rope
    assert rope is not None
    inverse, factor = inverse_frequencies(rope, config.head_dim, config.max_position_embeddings)
    return {
        "layers": len(config.layers),
        "kv_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "eps": config.rms_norm_eps,
        "context": config.max_position_embeddings,
        "inverse_frequencies": inverse.tolist(),
        "rope_factor": factor,
    }


def check_plain(config: ModelConfig) -> None:
    if config.architecture != "LlamaForCausalLM" or config.attention_bias:
        raise ValueError(f"the twin is a Llama without biases; this is a {config.architecture}")


def measure(
    name: str, dtype: str, folder: Path, sizes: Sizes, cold: bool
) -> tuple[dict[str, Any], int]:
    """Records the cases and replays them; figures, and the trace's output tokens.

    Writes into `folder` what torch_runner needs.
    """
    shape = export(checkpoints.pull(name), folder)
    elements = 2 * shape["layers"] * shape["kv_heads"] * shape["head_dim"]
    token_bytes = elements * jnp.dtype(dtype).itemsize
    if cold:
        jax.config.update("jax_compilation_cache_dir", str(folder / "xla"))
    llm = LLM(
        name,
        progress=False,
        dtype=dtype,
        max_num_seqs=SEQS,
        max_num_batched_tokens=BUDGET,
        kv_cache_memory=KV_TOKENS * token_bytes,
        enable_prefix_caching=False,
    )
    recorded = record(Recorder(llm), sizes)
    answers, seconds = generate(llm, sharegpt_like(sizes.requests, sizes.scale))
    tokens = sum(map(len, answers))
    figures: dict[str, Any] = {
        "ours_cold": cold,
        "ours_start_s": round(llm.core.ready.ready_s, 1),
        "trace_engine_tok_s": round(tokens / seconds, 1),
    }
    runner = OurRunner(llm)
    runner.fill_pages()
    packed = {}
    for case, steps in recorded.items():
        replay = runner.replay(steps, 1 if case == "trace" else sizes.passes)
        packed[case] = [s.packed(ids) for s, ids in zip(steps, replay.ids, strict=True)]
        found = case_figures(case, "ours", replay.seconds, tokens)
        print(*found.items(), flush=True)
        figures |= found
    if by_slot(packed["trace"]) != sorted(answers):
        raise RuntimeError("the replayed trace's tokens aren't the engine's own")
    save(folder / "plans.npz", packed)
    blocks, size = runner.pool_shape
    shape |= {"num_blocks": blocks, "block_size": size, "slots": SEQS + 1}
    (folder / "model.json").write_text(json.dumps(shape))
    trace = recorded["trace"]
    figures |= {
        "trace_steps": len(trace),
        "trace_padding_share": round(
            1 - sum(s.tokens for s in trace) / sum(s.bucket.tokens for s in trace), 3
        ),
        "weights_mib": round(runner.weight_bytes / 2**20),
        "kv_pool_mib": round(runner.page_bytes / 2**20),
        "ours_peak_mib": round(peak_mib()),
    }
    llm.core.close()
    return figures, tokens


def generate(llm: LLM, prompts: Prompts) -> tuple[list[list[int]], float]:
    """The whole engine's answers, and the seconds it took for them."""
    params = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for _, n in prompts]
    begin = time.perf_counter()
    done = llm.generate([ids for ids, _ in prompts], params)
    seconds = time.perf_counter() - begin
    return [list(request.outputs[0].token_ids) for request in done], seconds


def by_slot(steps: Sequence[PackedStep]) -> list[list[int]]:
    """The tokens sampled for each slot, sorted; every slot has had one sequence."""
    answers: dict[int, list[int]] = defaultdict(list)
    for step in steps:
        for slot, keep, token in zip(step.slots, step.keep, step.ids, strict=True):
            if keep:
                answers[int(slot)].append(int(token))
    return sorted(answers.values())


def case_figures(case: str, label: str, seconds: np.ndarray, tokens: int) -> dict[str, float]:
    """Figures of a replay's seconds [passes, steps]: the median step, or tokens a second of the
    trace."""
    if case != "trace":
        return {f"{case}_{label}_ms": round(float(np.median(seconds)) * 1e3, 2)}
    total = float(seconds.sum())
    return {f"trace_{label}_s": round(total, 2), f"trace_{label}_tok_s": round(tokens / total, 1)}


def peak_mib() -> float:
    """Peak memory so far: the device's, or on a CPU this process's."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "peak_bytes_in_use" in stats:
        return float(stats["peak_bytes_in_use"]) / 2**20
    return peak_resident_mib()
