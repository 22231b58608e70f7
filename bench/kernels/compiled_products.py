"""Compiles the products with packed weights for sm_80 and sm_90 without a GPU: registers, shared
memory, instructions and bytes of each:

    make kernels

Bytes are those that a product must move at least once, beside those of the packed matrix alone: the
matrix, its scales and zeros, rows, and partial sums, written and read. A decode of up to 64 rows
reads each packed byte once, since one program has all its rows. FP8 and int8 products of rounded
inputs are compiled without XLA's own Triton products, since no autotuning chooses here: then they
must be cuBLAS's for these types. The exit status is 1 if a kernel spills registers, lacks
tensor-core instructions, moves more than 1.15 times the packed bytes with 16 rows, or isn't
cuBLAS's. The last line is one flat JSON object.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

from bench.common.figures import print_figures

MOST_BYTES = 1.15


@dataclass(frozen=True)
class Case:
    """A product of `rows` with a matrix; with experts, rows are spread over them evenly."""

    name: str
    kind: Any
    rows: int
    outputs: int = 4096
    inputs: int = 4096
    group: int = 0
    zeros: bool = False
    experts: int = 1
    scale_bytes: bool = False
    float16: bool = False


CASES = (
    Case("int4 g128", "int4", 16, group=128),
    Case("int4 g128 zeros", "int4", 16, group=128, zeros=True),
    Case("int4 g128 zeros f16", "int4", 16, group=128, zeros=True, float16=True),
    Case("int4 g128 64 rows", "int4", 64, outputs=28672, group=128),
    Case("int4 g128 256 rows", "int4", 256, group=128),
    Case("int4 g32", "int4", 16, group=32),
    Case("int8", "int8", 16),
    Case("int8 64 rows", "int8", 64, outputs=28672),
    Case("fp8", "fp8", 16),
    Case("fp8 g128", "fp8", 16, group=128),
    Case("fp8 64 rows", "fp8", 64, outputs=28672),
    Case("mxfp4 32 experts", "e2m1", 128, 5760, 2880, 32, experts=32, scale_bytes=True),
    Case("int4 128 experts", "int4", 512, 1536, 2048, 128, experts=128),
)


def compile_packed(arch: str) -> None:
    """Compiles all cases for one architecture, and prints one JSON line each."""
    import jax
    import jax.numpy as jnp

    from bench.kernels.cuda_compile import GPUS, compile_for, kernels
    from pallas_kernels import stored_matmul

    shape = jax.ShapeDtypeStruct
    types = {"int4": jnp.uint8, "e2m1": jnp.uint8, "int8": jnp.int8, "fp8": jnp.float8_e4m3fn}
    for case in CASES:
        width = case.inputs // 2 if case.kind in ("int4", "e2m1") else case.inputs
        groups = -(-case.inputs // case.group) if case.group else 1
        matrix = (case.experts, case.outputs)
        scale = jnp.uint8 if case.scale_bytes else jnp.bfloat16
        dtype = jnp.float16 if case.float16 else jnp.bfloat16
        arguments = {
            "x": shape((case.rows, case.inputs), dtype),
            "codes": shape((*matrix, width), types[case.kind]),
            "scales": shape((*matrix, groups), scale),
        }
        if case.zeros:
            arguments["zeros"] = shape((*matrix, groups), jnp.int8)
        if case.experts > 1:
            arguments["sizes"] = shape((case.experts,), jnp.int32)

        def run(given: dict[str, jax.Array], case: Case = case) -> jax.Array:
            return stored_matmul(**given, kind=case.kind, group=case.group)

        done = compile_for(GPUS[arch], run, (arguments,))
        (kernel,) = [k for k in kernels() if k.name == "stored_matmul"]
        packed = sum(
            a.size * a.dtype.itemsize for name, a in arguments.items() if name not in ("x", "sizes")
        )
        rows = arguments["x"].size * arguments["x"].dtype.itemsize
        moved = packed + rows + 2 * done.temporary + done.outputs
        faults = []
        if kernel.spill_stores or kernel.spill_loads or kernel.count("LDL", "STL"):
            faults.append("spills")
        if not kernel.count("HMMA", "HGMMA"):
            faults.append("no tensor-core instruction")
        if kernel.shared > GPUS[arch].shared_per_block:
            faults.append("too much shared memory")
        if case.rows <= 16 and moved > MOST_BYTES * packed:
            faults.append(f"more than {MOST_BYTES} times the packed bytes")
        columns = {
            "registers": kernel.registers,
            "spills": kernel.spill_stores + kernel.spill_loads,
            "shared": kernel.shared,
            "mma": kernel.count("HMMA", "HGMMA"),
            "loads128": sum(
                n for op, n in kernel.mix.items() if op.startswith("LD") and ".128" in op
            ),
            "all": sum(kernel.mix.values()),
            "bytes_ratio": round(moved / packed, 3),
        }
        print(json.dumps({"case": case.name, "columns": columns, "faults": faults}), flush=True)


def compile_rounded(arch: str) -> None:
    """As compile_packed(), of products of rounded inputs; FP8 only where there are units for it."""
    import jax
    import jax.numpy as jnp

    from bench.kernels import cuda_compile
    from jaxserve.models.weights import Weight, gpu_products
    from jaxserve.models.weights.inputs import InputRounding
    from jaxserve.models.weights.scaled import Scaled

    gpu_products.has_fp8_units = lambda: arch == "sm_90"
    shape = jax.ShapeDtypeStruct
    forms: list[tuple[str, str, Any]] = [("int8", "int8", jnp.int8)]
    if arch == "sm_90":
        forms.append(("fp8", "float8_e4m3fn", jnp.float8_e4m3fn))
    for kind, rounded, dtype in forms:
        for rows in (64, 8192):
            arguments = {
                "codes": shape((4096, 4096), dtype),
                "scales": shape((4096, 1), jnp.float32),
            }

            def run(
                x: jax.Array, arrays: dict[str, jax.Array], kind: Any = kind, rounded: Any = rounded
            ) -> jax.Array | None:
                weight = Weight(arrays, Scaled(kind), InputRounding(rounded))
                return gpu_products.of_codes(x, weight)

            x = shape((rows, 4096), jnp.bfloat16)
            done = cuda_compile.compile_for(cuda_compile.GPUS[arch], run, (x, arguments))
            text = cuda_compile.optimized_text()
            calls = [line for line in text.splitlines() if "custom_call_target" in line]
            own = "matmul$f8" in text if kind == "fp8" else any("s8[" in line for line in calls)
            columns = {"kernels": len(done.thunks), "temporary_MB": round(done.temporary / 1e6, 1)}
            faults = [] if own else ["not cuBLAS's product of these types"]
            print(
                json.dumps(
                    {"case": f"{kind} x {kind} {rows}", "columns": columns, "faults": faults}
                ),
                flush=True,
            )


def main() -> int:
    if len(sys.argv) > 1:
        {"packed": compile_packed, "rounded": compile_rounded}[sys.argv[1]](sys.argv[2])
        return 0
    failed, figures = 0, Counter[str]()
    for arch in ("sm_80", "sm_90"):
        for part, flags in (("packed", ""), ("rounded", "--xla_gpu_enable_triton_gemm=false")):
            # The compiler may abort the process, so each has its own.
            command = [sys.executable, "-m", "bench.kernels.compiled_products", part, arch]
            environment = os.environ | {"XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}"}
            result = subprocess.run(command, capture_output=True, text=True, env=environment)
            rows = [json.loads(line) for line in result.stdout.splitlines() if line[:1] == "{"]
            for row in rows:
                cells = "  ".join(f"{name} {value}" for name, value in row["columns"].items())
                print(f"{arch} {row['case']:20s} {cells}  {'; '.join(row['faults'])}")
                figures[f"{arch}_products"] += 1
                failed += bool(row["faults"])
            if result.returncode:
                print(result.stderr[-3000:])
                failed += 1
    print_figures(figures | {"faults": failed})
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
