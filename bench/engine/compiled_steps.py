"""The engine's whole step, compiled for sm_80 and sm_90 without a GPU: kernels a layer, memory, and
how much of it command buffers (CUDA graphs) launch.

    python -m bench.engine.compiled_steps [--archs sm_80 sm_90] [--layers 32]

Llama 3.1 8B in bfloat16: a decode step of 64 rows, 8 such steps in one dispatch (`repeat`), a step
that verifies 3 guesses of each of 64 rows, and a step of 8,192 tokens, as the programs that the
engine compiles on a GPU. The exit status is 1 where a limit below is exceeded. The last line is one
flat JSON object. Matrix products are not autotuned here: a GPU may choose cuBLAS where this has
Triton, and so use a kernel more or less to sum partial products.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Any
from unittest import mock

from bench.common.figures import print_figures

# Tokens, rows, guesses of a sequence.
STEPS = {"decode": (64, 64, 0), "verify": (256, 256, 3), "mixed": (8192, 256, 0)}
DECODE_STEPS = 8
MAX_MODEL_LEN = 8192
# Limits of kernels and copies: in a layer, and outside the layers of a layer group.
MOST_A_LAYER, MOST_BESIDE = 13, {"decode": 12, "verify": 12, "mixed": 16}
LEAST_BUFFERED = 5  # fewer kernels than this XLA leaves outside command buffers
UNBUFFERED = {"repeat": 1}  # the one before its loop
GPU_OF_ARCH = {"sm_80": "A100-80GB", "sm_90": "H100-80GB"}


@dataclass(frozen=True)
class Program:
    """One program of a step; sizes in bytes.

    Args:
        thunks: kernels, library calls and copies.
        buffered: those that a command buffer launches.
        pallas, pallas_buffered: of those, our own kernels.
        pool: bytes of the KV pool that the program takes; 0 if it takes none.
        names: how often each kernel occurs.
    """

    step: str
    name: str
    thunks: int
    buffered: int
    pallas: int
    pallas_buffered: int
    temporary: int
    outputs: int
    aliased: int
    pool: int
    names: dict[str, int]

    def faults(self, layers: int) -> list[str]:
        """The limits that the program exceeds, in words."""
        found = []
        outside = self.thunks - self.buffered
        if outside > UNBUFFERED.get(self.name, 0) and self.thunks >= LEAST_BUFFERED:
            found.append(f"{outside} kernels in no command buffer")
        if self.name == "layers":
            most = MOST_A_LAYER * layers + MOST_BESIDE[self.step]
            if self.thunks > most:
                found.append(f"more than {most} kernels")
        if self.pool:
            if self.aliased < self.pool:
                found.append("the pool isn't updated in place")
            if self.temporary > self.pool / 4:
                found.append("so much temporary memory that the pool may be copied")
        return found


def compile_programs(arch: str, layers: int, steps: list[str]) -> None:
    """Prints a JSON line for each program of each step, then one with the bytes that the largest
    program allocates."""
    import jax
    import jax.numpy as jnp

    from bench.engine.llama_shapes import llama_8b
    from bench.kernels.cuda_compile import GPUS, Thunk, compile_for
    from jaxserve.config import EngineConfig
    from jaxserve.engine.device.buckets import Bucket
    from jaxserve.engine.device.model_outline import outline
    from jaxserve.engine.startup import step_memory
    from jaxserve.engine.startup.device_info import DeviceInfo, prepare_gpu
    from jaxserve.engine.startup.engine_limits import EngineLimits
    from jaxserve.engine.startup.start_runner import state_maker, step_programs

    def is_pallas(thunk: Thunk) -> bool:
        return thunk.name.startswith(("paged_", "write_kv"))

    prepare_gpu(EngineConfig().gpu_memory_utilization)
    config, dtype = EngineConfig(max_model_len=MAX_MODEL_LEN), jnp.dtype(jnp.bfloat16)
    machine = DeviceInfo.named(GPU_OF_ARCH[arch], config.gpu_memory_utilization)
    model = outline(llama_8b(layers), dtype, MAX_MODEL_LEN)
    limits = EngineLimits.resolve(config, model, dtype, machine)
    vocab = model.config.vocab_size
    programs = step_programs(limits, model, machine, vocab, DECODE_STEPS)
    state = jax.eval_shape(state_maker(replace(limits, num_guesses=3), vocab))
    pool = sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(state.pages))
    # Code that asks for the backend must get the answer that it would get on a GPU.
    with mock.patch.object(jax, "default_backend", return_value="gpu"):
        for step in steps:
            bucket, largest = Bucket(*STEPS[step]), 0
            for key, job in programs.jobs(bucket, state).items():
                name = key if isinstance(key, str) else key[0]
                done = compile_for(
                    GPUS[arch], job.function, job.arguments, donate_argnums=job.donated
                )
                ours = [t for t in done.thunks if is_pallas(t)]
                program = Program(
                    step=step,
                    name=name,
                    thunks=len(done.thunks),
                    buffered=sum(t.buffered for t in done.thunks),
                    pallas=len(ours),
                    pallas_buffered=sum(t.buffered for t in ours),
                    temporary=done.temporary,
                    outputs=done.outputs,
                    aliased=done.aliased,
                    pool=pool if name in ("layers", "repeat") else 0,
                    names=dict(Counter(f"{t.kind} {t.name}" for t in done.thunks)),
                )
                largest = max(largest, done.temporary + done.outputs)
                print(json.dumps(asdict(program)), flush=True)
            estimate = step_memory.estimate(model.config, dtype, bucket)
            print(json.dumps({"step": step, "largest": largest, "estimate": estimate}), flush=True)


def show(arch: str, program: Program, layers: int) -> None:
    a_layer = f"{program.thunks / layers:.2f} a layer" if program.name == "layers" else ""
    print(
        f"{arch} {program.step:7s}{program.name:9s}{program.thunks:5d}  {a_layer:14s}"
        f"{program.buffered:5d} in command buffers{program.pallas_buffered:4d} of"
        f"{program.pallas:4d} Pallas  temp {program.temporary:13,d}  new {program.outputs:13,d}  "
        f"aliased {program.aliased:15,d}  {'; '.join(program.faults(layers))}",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--archs", nargs="+", default=list(GPU_OF_ARCH), choices=GPU_OF_ARCH)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--steps", nargs="+", default=list(STEPS), choices=STEPS)
    parser.add_argument("--compile", choices=GPU_OF_ARCH, help=argparse.SUPPRESS)
    parser.add_argument("--names", action="store_true", help="print every kernel's name")
    args = parser.parse_args()
    if args.compile:
        compile_programs(args.compile, args.layers, args.steps)
        return 0
    failed, figures = 0, {}
    for arch in args.archs:
        # The compiler may abort the process, so each architecture has its own.
        command = [sys.executable, "-m", "bench.engine.compiled_steps", "--compile", arch]
        command += ["--layers", str(args.layers), "--steps", *args.steps]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                row: dict[str, Any] = json.loads(line)
                if "largest" in row:
                    key = f"{arch}_{row['step']}"
                    figures |= {f"{key}_{k}_bytes": row[k] for k in ("largest", "estimate")}
                    continue
                program = Program(**row)
                show(arch, program, args.layers)
                if args.names:
                    print("\n".join(f"    {n:4d} {name}" for name, n in program.names.items()))
                failed += bool(program.faults(args.layers))
                key = f"{arch}_{program.step}_{program.name}"
                figures |= {f"{key}_kernels": program.thunks, f"{key}_buffered": program.buffered}
                figures |= {f"{key}_temp_bytes": program.temporary}
        failed += bool(process.returncode)
    print_figures(figures)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
