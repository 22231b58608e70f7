"""The engine: tokens a second beside transformers and two limits, and the host's work a step.

    python -m bench.engine [--tokens 128] [--batches 1 8 32] [--skip-peers]

JAXSERVE_TORCH_PYTHON names an interpreter that has torch and transformers; without it only ours is
measured. The demo model, greedy, end ignored. The limits are measured in the same run: bytes of the
weights over the speed of reading memory, FLOPs of the weights over the speed of a large float32
matmul. Host work is what a turn of the loop takes beside waiting for the device; idle is what the
device waits for the host. The last line is one flat JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import save_file

import checkpoints
from jaxserve import LLM, SamplingParams
from jaxserve.engine.handle import StepHandle

ROOT = Path(__file__).resolve().parents[1]
PEER = ROOT / "bench" / "peers" / "transformers_generate.py"
PROMPT = 128
TTFT_PROMPT = 1024
TOY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 256,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}


def toy(folder: Path) -> Path:
    """A model of one small layer, where the host's work is most of a step."""
    rng = np.random.default_rng(0)
    prefix = "model.layers.0."
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (256, 64)}
    shapes |= {f"{prefix}self_attn.{n}_proj.weight": (64, 64) for n in "qkvo"}
    shapes |= {f"{prefix}mlp.{n}_proj.weight": (64, 64) for n in ("gate", "up", "down")}
    weights = {n: rng.standard_normal(s).astype(np.float32) * 0.1 for n, s in shapes.items()}
    for norm in (f"{prefix}input_layernorm", f"{prefix}post_attention_layernorm", "model.norm"):
        weights[f"{norm}.weight"] = np.ones(64, np.float32)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(TOY))
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    vocabulary = {f"w{i}": i for i in range(256)}
    Tokenizer(WordLevel(vocabulary)).save(str(folder / "tokenizer.json"))
    return folder


def prompts(count: int, length: int, vocab: int) -> list[list[int]]:
    """Different prompts, so that no two share a cached block."""
    rng = np.random.default_rng(count)
    return rng.integers(10, vocab - 10, (count, length)).tolist()


class HostClock:
    """Times the turns of a loop, less what they wait for the device."""

    def __init__(self, llm: LLM) -> None:
        self.turns: list[float] = []
        self._waited = 0.0
        core, wait = llm.core, StepHandle.wait

        def timed_wait(handle: StepHandle) -> Any:
            begin = time.perf_counter()
            jax.block_until_ready(handle.output.ids)
            self._waited += time.perf_counter() - begin
            return wait(handle)

        def timed_step() -> Any:
            begin, self._waited = time.perf_counter(), 0.0
            outputs = step()
            self.turns.append(time.perf_counter() - begin - self._waited)
            return outputs

        step = core.step
        core.step = timed_step  # type: ignore[method-assign]
        StepHandle.wait = timed_wait  # type: ignore[method-assign]


def host_work(llm: LLM, name: str, running: int, tokens: int) -> dict[str, float]:
    """Microseconds a step of host work and of an idle device, with so many decodes running."""
    clock = HostClock(llm)
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    batch = prompts(running, 16, 256)
    for i, prompt in enumerate(batch):
        llm.core.submit(llm._intake.submission(f"{name}{i}", prompt, params))
    while llm.core.stats.waiting or not clock.turns:
        llm.core.step()
    clock.turns.clear()
    before = llm.core.report().idle_s
    steps, begin = 0, time.perf_counter()
    while llm.core.stats.running == running and steps < tokens - 20:
        llm.core.step()
        steps += 1
    wall = time.perf_counter() - begin
    idle = llm.core.report().idle_s - before
    for i in range(running):
        llm.core.abort(f"{name}{i}")
    while llm.core.has_work:
        llm.core.step()
    turns = sorted(clock.turns[:steps])
    return {
        f"{name}_r{running}_host_p50_us": round(statistics.median(turns) * 1e6, 1),
        f"{name}_r{running}_host_p99_us": round(turns[int(len(turns) * 0.99)] * 1e6, 1),
        f"{name}_r{running}_idle_us": round(idle / steps * 1e6, 1),
        f"{name}_r{running}_step_us": round(wall / steps * 1e6, 1),
    }


def throughput(llm: LLM, batch: int, tokens: int) -> float:
    """Output tokens a second of requests that arrive together, prefill included."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    work = prompts(batch, PROMPT, 40_000)
    begin = time.perf_counter()
    done = llm.generate(work, params)
    seconds = time.perf_counter() - begin
    assert all(len(request.outputs[0].token_ids) == tokens for request in done)
    llm.core.reset_prefix_cache()
    return batch * tokens / seconds


def decode_rate(llm: LLM, batch: int, tokens: int) -> float:
    """Decode tokens a second: the time of more tokens less that of few."""
    few = 8
    slow, fast = (
        batch * tokens / throughput(llm, batch, tokens),
        batch * few / throughput(llm, batch, few),
    )
    return batch * (tokens - few) / (slow - fast)


def read_rate() -> float:
    """Bytes a second of reading memory with all cores."""
    array = jnp.ones(2**27, jnp.float32)
    total = jax.jit(jnp.sum).lower(array).compile()
    return array.nbytes / _best(lambda: total(array).block_until_ready())


def matmul_rate() -> float:
    """FLOP/s of a large float32 matmul."""
    a = jnp.ones((2048, 2048), jnp.float32)
    product = jax.jit(jnp.matmul).lower(a, a).compile()
    return 2 * 2048**3 / _best(lambda: product(a, a).block_until_ready())


def _best(call: Any) -> float:
    times = []
    for _ in range(7):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    return min(times)


def peer(dtype: str, batches: list[int], tokens: int) -> dict[str, float]:
    python = os.environ["JAXSERVE_TORCH_PYTHON"]
    model = checkpoints.pull("smollm2-135m")
    command = [python, str(PEER), str(model), dtype, str(tokens), *map(str, batches)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--skip-peers", action="store_true")
    args = parser.parse_args()
    figures: dict[str, float] = {}
    read, flops = read_rate(), matmul_rate()
    figures |= {"read_gb_s": round(read / 1e9, 1), "matmul_gflop_s": round(flops / 1e9, 1)}

    llm = LLM("smollm2-135m", progress=False, enable_prefix_caching=False)
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(llm.core._runner._params))
    throughput(llm, 1, 4)
    for batch in args.batches:
        rate = decode_rate(llm, batch, args.tokens)
        floor = max(weights / read, batch * weights / 4 * 2 / flops)
        figures |= {
            f"b{batch}_tok_s": round(throughput(llm, batch, args.tokens), 1),
            f"b{batch}_decode_tok_s": round(rate, 1),
            f"b{batch}_limit_tok_s": round(batch / floor, 1),
            f"b{batch}_over_limit": round(batch / floor / rate, 2),
        }
    begin = time.perf_counter()
    llm.generate(prompts(1, TTFT_PROMPT, 40_000), SamplingParams(temperature=0, max_tokens=1))
    figures["ttft_1024_s"] = round(time.perf_counter() - begin, 3)
    figures |= host_work(llm, "demo", 32, 60)
    llm.core.close()
    with tempfile.TemporaryDirectory() as folder:
        small = LLM(str(toy(Path(folder))), progress=False, max_num_seqs=256, kv_cache_memory=2**26)
        for running in (1, 32, 256):
            figures |= host_work(small, "toy", running, 200)
        small.core.close()
    if not args.skip_peers and "JAXSERVE_TORCH_PYTHON" in os.environ:
        for dtype in ("float32", "bfloat16"):
            for name, value in peer(dtype, args.batches, args.tokens).items():
                figures[f"transformers_{dtype}_{name}"] = value
                if name in figures:
                    ratio = figures[name] / value
                    figures[f"transformers_{dtype}_{name}_ratio"] = round(ratio, 2)
    for name, value in figures.items():
        print(f"{name:45} {value}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
