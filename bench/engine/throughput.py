"""The engine's tokens a second beside its peers' and beside two limits, and the host's work a step.

    python -m bench.engine.throughput [--tokens 128] [--batches 1 8 32] [--rounds 2] [--skip-peers]
        [--quick] [--decode-steps 8]

JAXSERVE_VLLM_PYTHON and JAXSERVE_TORCH_PYTHON name interpreters that have the vLLM CPU build, and
torch and transformers (bench/peers/setup.sh makes both). Every engine gets the same float32
weights and the same prompts, in one process without a server, with greedy sampling and without
stopping at the end-of-sequence token; peers compute in float32 and again in bfloat16. Loads:
batches of requests that arrive together, the first token of a long prompt, and a trace that arrives
all at once, with lengths distributed as ShareGPT's times a quarter. A peer that is missing, fails
or takes more than --peer-limit or --bf16-limit seconds is noted with the reason, beside its figures
so far. The shapes of each load run once before it is measured. There are --rounds rounds, in every
other one in the opposite order; figures are medians with the lowest and highest, and `_ahead` says
whether our worst round is better than a peer's best.

The limits are measured in the same run: bytes of the weights over the rate of reading memory, FLOPs
of the weights over the rate of a large float32 matmul. Host work is the time of a turn of the loop
without waiting for the device; idle is the time for which the device waits for the host.
--decode-steps N also measures both with N decode steps a dispatch, as figures a step. The last line
is one flat JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from bench.common import demo_weights
from bench.common.figures import print_figures
from bench.engine.host_work import host_work
from bench.engine.toy_model import write_toy
from bench.peers.rates import Generate, Job, OnToken, measure
from jaxserve import LLM, SamplingParams
from jaxserve.bench.datasets import LENGTHS

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / "bench" / "peers"
PEER_SCRIPTS = {
    "vllm": ("JAXSERVE_VLLM_PYTHON", "vllm_generate.py"),
    "transformers": ("JAXSERVE_TORCH_PYTHON", "transformers_generate.py"),
}
RATE = re.compile(r"ttft_\d+_s|b\d+(_decode)?_tok_s|trace_tok_s")  # what every engine has
TRACE_SCALE = 0.25
PROMPT = 128
TTFT_PROMPT = 1024


def ours(llm: LLM) -> Generate:
    def generate(work: list[list[int]], answers: list[int], on_token: OnToken) -> None:
        for row, (prompt, answer) in enumerate(zip(work, answers, strict=True)):
            params = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True)
            llm.core.submit(llm._validator.submission(str(row), prompt, params))
        while llm.core.has_work:
            for output in llm.core.step():
                for _ in output.token_ids:
                    on_token(int(output.request_id))

    return generate


def limit(batch: int, weight_bytes: int, read: float, flops: float) -> float:
    """Decode tokens a second if a step only read the weights or only multiplied by them, whichever
    takes longer."""
    return batch / max(weight_bytes / read, batch * weight_bytes / 4 * 2 / flops)


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


def peer(variable: str, script: str, job: Job, limit_s: float) -> dict[str, Any]:
    """A peer's figures, and as `note` why some are missing."""
    python = os.environ.get(variable)
    if python is None:
        return {"note": f"not installed: {variable} isn't set (bench/peers/setup.sh)"}
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [python, str(PEERS / script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        reason = ""
        try:
            output, _ = process.communicate(json.dumps(asdict(job)) + "\n", timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            reason = f"stopped after {limit_s:.0f} s"
        finally:
            process.kill()
        errors.seek(0)
        if process.returncode and not reason:
            reason = f"failed: {(errors.read().strip().splitlines() or ['?'])[-1]}"
    figures: dict[str, Any] = {"note": reason} if reason else {}
    for line in output.splitlines():
        if line.startswith("{"):
            figures |= json.loads(line)
    return figures


def joined(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of several rounds: the median of each, and for rates the lowest and highest."""
    figures: dict[str, Any] = {}
    for key in dict.fromkeys(key for found in rounds for key in found):
        values = [found[key] for found in rounds if key in found]
        if isinstance(values[0], str):
            figures[key] = values[0]
            continue
        figures[key] = round(statistics.median(values), 3)
        if RATE.fullmatch(key) and len(values) > 1:
            figures |= {f"{key}_low": min(values), f"{key}_high": max(values)}
    return figures


def beside(figures: dict[str, Any], name: str, found: dict[str, Any]) -> None:
    """Adds a peer's figures; our speed over the peer's, above 1 if we are faster; and whether we
    are ahead in every round, which a ratio alone doesn't say."""
    for key, value in found.items():
        figures[f"{name}_{key}"] = value
        if not RATE.fullmatch(key) or key not in figures:
            continue
        ours, theirs = _range(figures, key), _range(found, key)
        if "tok" in key:
            ratio, ahead = figures[key] / value, ours[0] > theirs[1]
        else:
            ratio, ahead = value / figures[key], ours[1] < theirs[0]
        figures[f"{name}_{key}_ratio"] = round(ratio, 2)
        figures[f"{name}_{key}_ahead"] = ahead


def _range(figures: dict[str, Any], key: str) -> tuple[float, float]:
    return (figures.get(f"{key}_low", figures[key]), figures.get(f"{key}_high", figures[key]))


def mixed_trace(count: int, scale: float) -> list[tuple[int, int]]:
    """Lengths of prompt and answer, distributed as ShareGPT's, times `scale`."""
    draws = random.Random(0)
    lengths = (LENGTHS["sharegpt-like"].draw(draws) for _ in range(count))
    return [(max(1, round(p * scale)), max(1, round(a * scale))) for p, a in lengths]


def our_figures(job: Job, decode_steps: int) -> dict[str, Any]:
    """Of the demo model: rates, limits, and the host's work."""
    read, flops = read_rate(), matmul_rate()
    figures: dict[str, Any] = {
        "read_gb_s": round(read / 1e9, 1),
        "matmul_gflop_s": round(flops / 1e9, 1),
    }
    llm = LLM(
        job.model,
        progress=False,
        enable_prefix_caching=False,
        max_num_seqs=job.max_seqs,
    )
    figures["ready_s"] = round(llm.core.ready.ready_s, 1)
    weight_bytes = sum(leaf.nbytes for leaf in jax.tree.leaves(llm.core._runner._params))
    for found in measure(job, ours(llm)):
        figures |= found
    for batch in job.batches:
        reachable = limit(batch, weight_bytes, read, flops)
        figures[f"b{batch}_limit_tok_s"] = round(reachable, 1)
        figures[f"b{batch}_over_limit"] = round(reachable / figures[f"b{batch}_decode_tok_s"], 2)
    for running in (1, 32):
        figures |= host_work(llm, "demo", running, 60)
    llm.core.close()
    if decode_steps > 1:
        several = LLM(
            job.model, progress=False, max_num_seqs=job.max_seqs, decode_steps=decode_steps
        )
        figures["several_ready_s"] = round(several.core.ready.ready_s, 1)
        for running in (1, 32):
            figures |= host_work(several, "demo_several", running, 60)
        several.core.close()
    return figures


def toy_figures(decode_steps: int) -> dict[str, float]:
    """The host's work with the toy model."""
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        model = str(write_toy(Path(folder)))
        for name, steps in {"toy": 1, "toy_several": decode_steps}.items():
            if name == "toy" or steps > 1:
                settings = {"max_num_seqs": 256, "kv_cache_memory": 2**26, "decode_steps": steps}
                small = LLM(model, progress=False, **settings)
                for running in (1, 32, 256):
                    figures |= host_work(small, name, running, 200)
                small.core.close()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--trace", type=int, default=48, help="requests of the mixed trace")
    parser.add_argument("--peer-limit", type=float, default=150.0, help="seconds for one peer")
    parser.add_argument("--bf16-limit", type=float, default=75.0, help="the same, in bfloat16")
    parser.add_argument(
        "--decode-steps", type=int, default=1, help="also measure so many a dispatch"
    )
    parser.add_argument("--skip-peers", action="store_true")
    parser.add_argument("--skip-toy", action="store_true")
    parser.add_argument("--rounds", type=int, default=2, help="who goes first alternates")
    parser.add_argument("--quick", action="store_true", help="8 tokens of 1 and 4 requests")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that a running peer is stopped
    if args.quick:
        args.tokens, args.batches, args.trace, args.skip_toy = 8, [1, 4], 0, True
        args.rounds = 1
    folder = demo_weights.write(demo_weights.default_folder())
    ttft = 128 if args.quick else TTFT_PROMPT
    trace = mixed_trace(args.trace, TRACE_SCALE)
    job = Job(str(folder), "float32", args.batches, PROMPT, args.tokens, ttft, trace)
    engines: dict[str, Callable[[], dict[str, Any]]] = {
        "jaxserve": lambda: our_figures(job, args.decode_steps)
    }
    for dtype in () if args.skip_peers else ("float32", "bfloat16"):
        alike = replace(job, dtype=dtype, trace=trace if dtype == "float32" else [])
        limit_s = args.peer_limit if dtype == "float32" else args.bf16_limit
        for name, (variable, script) in PEER_SCRIPTS.items():
            engines[f"{name}_{dtype}"] = partial(peer, variable, script, alike, limit_s)
    rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in engines}
    for number in range(args.rounds):
        # Who goes first alternates, because the machine's speed drifts.
        for name in engines if number % 2 == 0 else reversed(engines):
            rounds[name].append(engines[name]())
    figures = joined(rounds.pop("jaxserve"))
    if not args.skip_toy:
        figures |= toy_figures(args.decode_steps)
    for name, found in rounds.items():
        beside(figures, name, joined(found))
    for name, value in figures.items():
        print(f"{name:45} {value}")
    print_figures(figures)


if __name__ == "__main__":
    main()
