"""Compiles every Triton kernel for sm_80 and sm_90 without a GPU and prints registers, shared
memory and instructions of each:

    make kernels

The exit status is 1 if a kernel spills registers, uses local memory, lacks tensor-core instructions
or needs a copy of the KV pool. The last line is one flat JSON object.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp

from bench.common.figures import print_figures


@dataclass(frozen=True)
class Case:
    """One compiled function: write_kv, then attention.

    Args:
        sequences: S; with few of them, the context of a decode is divided among programs.
        width: blocks of the longest context; with many, long contexts of many sequences are, too.
        plain: whether the dot products are float32, which the tensor cores don't compute.
    """

    name: str
    tokens: int = 256
    sequences: int = 64
    width: int = 512
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    block_size: int = 16
    dtype: Any = jnp.bfloat16
    kv_dtype: Any = jnp.bfloat16
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    blocks: int = 4096

    @property
    def plain(self) -> bool:
        return self.dtype == jnp.float32


CASES = (
    Case("bf16 128"),
    Case("bf16 128 split", tokens=2, sequences=1),
    Case("bf16 128 of 131072", sequences=256, width=8192),
    Case("bf16 128 2^32", blocks=2**18),  # cells, so 64-bit offsets
    Case("bf16 64", heads=64, head_dim=64),
    Case("bf16 256", heads=16, head_dim=256),
    Case("bf16 80 mha", heads=16, kv_heads=16, head_dim=80),
    Case("bf16 mqa", kv_heads=1),
    Case("bf16 pages 128", block_size=128),
    Case("bf16 gpt-oss", heads=64, head_dim=64, window=128, sinks=True),
    Case("bf16 gemma", heads=16, head_dim=256, window=1024, softcap=50.0),
    Case("fp16 128", dtype=jnp.float16, kv_dtype=jnp.float16),
    Case("e4m3 128", kv_dtype=jnp.float8_e4m3fn),
    Case("e4m3 128 split", tokens=2, sequences=1, kv_dtype=jnp.float8_e4m3fn),
    Case("e5m2 fp16", dtype=jnp.float16, kv_dtype=jnp.float8_e5m2),
    Case("fp32 64 G3", heads=9, kv_heads=3, head_dim=64, dtype=jnp.float32, kv_dtype=jnp.float32),
)


def step(case: Case) -> tuple[Any, tuple[jax.ShapeDtypeStruct, ...]]:
    from pallas_kernels import page_shape, paged_attention, write_kv

    def run(k_pages, v_pages, q, k, v, tables, contexts, starts, slots, sinks):  # type: ignore[no-untyped-def]
        k_pages, v_pages = write_kv(k, v, k_pages, v_pages, slots, implementation="triton")
        out = paged_attention(
            q,
            k_pages,
            v_pages,
            tables,
            contexts,
            starts,
            scale=case.head_dim**-0.5,
            window=case.window,
            softcap=case.softcap,
            sinks=sinks if case.sinks else None,
            implementation="triton",
        )
        return k_pages, v_pages, out

    shape = jax.ShapeDtypeStruct
    pages = shape(
        page_shape(case.blocks, case.kv_heads, case.block_size, case.head_dim), case.kv_dtype
    )
    new = shape((case.tokens, case.kv_heads, case.head_dim), case.dtype)
    ints = [(case.sequences, case.width), (case.sequences,), (case.sequences + 1,), (case.tokens,)]
    return run, (
        pages,
        pages,
        shape((case.tokens, case.heads, case.head_dim), case.dtype),
        new,
        new,
        *(shape(x, jnp.int32) for x in ints),
        shape((case.heads,), jnp.float32),
    )


def compile_cases(arch: str) -> None:
    """Compiles all cases for one architecture, and prints one JSON line a kernel."""
    from bench.kernels.cuda_compile import GPUS, compile_for, kernels

    for case in CASES:
        run, args = step(case)
        compiled = compile_for(GPUS[arch], run, args, donate_argnums=(0, 1))
        pool = 2 * args[0].size * args[0].dtype.itemsize
        faults = [] if compiled.aliased >= pool else [f"aliased {compiled.aliased} of {pool} B"]
        if compiled.temporary > pool / 2:
            faults.append(f"{compiled.temporary} B temporary: a copy of the pool?")
        for kernel in kernels():
            if not kernel.name.startswith(("paged_", "write_kv")):
                continue
            row = asdict(kernel) | {"case": case.name, "faults": [*faults]}
            faults.clear()
            if kernel.spill_stores or kernel.spill_loads or kernel.count("LDL", "STL"):
                row["faults"].append("spills")
            tensor = kernel.count("HMMA", "HGMMA", "QGMMA")
            if "merge" not in kernel.name and "write" not in kernel.name and not case.plain:
                row["faults"] += [] if tensor else ["no tensor-core instruction"]
            if kernel.shared > GPUS[arch].shared_per_block:
                row["faults"].append("too much shared memory")
            row["columns"] = {
                "mma": tensor,
                "LDG128": sum(
                    n
                    for op, n in kernel.mix.items()
                    if op.startswith(("LDG", "LDGSTS")) and ".128" in op
                ),
                "LDG": kernel.count("LDG"),
                "LDS": kernel.count("LDS"),
                "STS": kernel.count("STS"),
                "FFMA": kernel.count("FFMA"),
                "MUFU": kernel.count("MUFU"),
                "BAR": kernel.count("BAR"),
                "all": sum(kernel.mix.values()),
            }
            del row["mix"]
            print(json.dumps(row), flush=True)


def main() -> int:
    if len(sys.argv) > 1:
        compile_cases(sys.argv[1])
        return 0
    failed, figures = 0, Counter[str]()
    for arch in ("sm_80", "sm_90"):
        # The compiler may abort the process, so each architecture has its own.
        command = [sys.executable, "-m", "bench.kernels.compiled_kernels", arch]
        result = subprocess.run(command, capture_output=True, text=True)
        rows = [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")]
        print(f"\n{arch:16s}{'kernel':20s} regs spill  shared", end="")
        print("".join(f"{name:>7s}" for name in rows[0]["columns"]) if rows else "")
        for row in rows:
            print(
                f"{row['case']:16s}{row['name']:20s} {row['registers']:4d} "
                f"{row['spill_stores'] + row['spill_loads']:5d} {row['shared']:7d}"
                + "".join(f"{n:7d}" for n in row["columns"].values())
                + f"  {'; '.join(row['faults'])}"
            )
            failed += bool(row["faults"])
            figures[f"{arch}_kernels"] += 1
            figures[f"{arch}_faults"] += bool(row["faults"])
            most = max(figures[f"{arch}_most_registers"], row["registers"])
            figures[f"{arch}_most_registers"] = most
        if result.returncode:
            print(result.stderr[-3000:])
            print(f"{arch}: stopped after {rows[-1]['case'] if rows else 'nothing'}")
            failed += 1
    print(f"\n{failed} faults" if failed else "\nno spills, no local memory, tensor cores in use")
    print_figures(figures)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
