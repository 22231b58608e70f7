"""The kernel part of bench.kernels.gpu: the Triton kernels' results against the reference
implementation's, and their times beside the least that the device allows and beside peers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from bench.kernels.device_limits import QUICK, Timing
from bench.kernels.paged_inputs import Shape, repeat
from pallas_kernels import paged_attention, triton_attention, triton_cache, xla

Check = tuple[Shape, dict[str, Any]]  # a batch, and options of paged_attention


@dataclass(frozen=True)
class KernelBench:
    """What is measured, at which sizes.

    Args:
        interpret: run the kernels in Pallas's interpret mode, on any device.
    """

    timing: Timing
    checks: dict[str, Check]
    decode: dict[str, Shape]
    prefill: dict[str, Shape]
    interpret: bool = False

    def check_all(self) -> tuple[dict[str, float], int]:
        """Prints and returns the errors by name, relative to the largest output, and how many
        kernels are wrong."""
        figures, wrong = {}, 0
        for name, (shape, options) in self.checks.items():
            error = check(shape, options, self.interpret)
            limit = 2e-5 if shape.dtype == jnp.float32 else 2e-2
            wrong += not error < limit
            figures[f"error_{name}"] = error
            print(f"check {name:14s} {error:.2e} {'ok' if error < limit else 'WRONG'}", flush=True)
        if not check_write(self.interpret):
            wrong += 1
            print("check write_kv       WRONG")
        return figures, wrong

    def measure(self, bandwidth: float, rate: float) -> dict[str, Any]:
        """Prints and returns microseconds, and the share that the least possible time is of each.

        Args:
            bandwidth: bytes a second of a copy.
            rate: bf16 matmul operations a second.
        """
        figures: dict[str, Any] = {}
        print(f"{'':24s}{'us':>9s}{'limit':>10s}{'torch us':>10s}{'jax us':>10s}")
        for kind, cases in (("decode", self.decode), ("prefill", self.prefill)):
            for name, shape in cases.items():
                step, args = ours(shape, interpret=self.interpret)
                took = self.timing.seconds(step, *args)
                ideal = shape.kv_bytes / bandwidth if kind == "decode" else shape.flops / rate
                peers = self._peers(kind, shape)
                key = f"{kind}_{name}"
                figures |= {
                    f"{key}_us": round(took * 1e6, 1),
                    f"{key}_limit_share": round(ideal / took, 4),
                }
                figures |= {f"{key}_{p}_us": s and round(s * 1e6, 1) for p, s in peers.items()}
                columns = "".join(
                    f"{s * 1e6:10.1f}" if s else f"{'-':>10s}" for s in peers.values()
                )
                print(f"{key:24s}{took * 1e6:9.1f}{100 * ideal / took:9.1f}%{columns}", flush=True)
        gain = figures["decode_64x4096_us"] / figures["decode_64x4096_e4m3_us"]
        print(f"e4m3 decode is {gain:.2f} times bf16's speed")
        return figures | {"e4m3_speed_ratio": round(gain, 2)}

    def _peers(self, kind: str, shape: Shape) -> dict[str, float | None]:
        peers: dict[str, float | None] = {"torch": None, "jax": None}
        if self.interpret:
            return peers
        equal = len(set(shape.sequences)) == 1 and shape.kv_dtype is None
        if equal and shape.sequences[0][0] in (1, shape.sequences[0][1]):
            peers["torch"] = self._peer(torch_sdpa, shape)
        if kind == "decode" and shape.kv_dtype is None:
            peers["jax"] = self._peer(jax_paged, shape)
        return peers

    def _peer(self, measure: Callable[[Timing, Shape], float], shape: Shape) -> float | None:
        """A peer's seconds; None where it is not installed or fails."""
        try:
            return measure(self.timing, shape)
        except Exception as refused:  # whatever fails in a peer must not end our run
            print(f"  {measure.__name__}: {type(refused).__name__}: {str(refused)[:100]}")
            return None


def ours(shape: Shape, **options: Any) -> tuple[Callable[..., jax.Array], tuple[Any, ...]]:
    """A step that maps q to the attention's output, and its arguments."""

    def step(q: jax.Array, *args: Any) -> jax.Array:
        return triton_attention.paged_attention(
            q,
            *args,
            scale=shape.head_dim**-0.5,
            max_query_len=max(n for n, _ in shape.sequences),
            **(dict.fromkeys(("window", "softcap", "sinks", "k_scale", "v_scale")) | options),
        )

    q, *tables = shape.batch()
    return step, (q, *shape.pool(7), *tables)


def check(shape: Shape, options: dict[str, Any], interpret: bool) -> float:
    """Largest difference from the reference, in units of the largest output."""
    sinks = jnp.linspace(-1, 1, shape.heads) if "sinks" in options else None
    options = options | {"sinks": sinks}
    step, args = ours(shape, interpret=interpret, **options)
    want = paged_attention(
        *args, scale=shape.head_dim**-0.5, implementation="reference", **options
    ).astype(jnp.float32)
    got = jax.jit(step)(*args).astype(jnp.float32)
    return float(jnp.max(jnp.abs(got - want)) / jnp.max(jnp.abs(want)))


def check_write(interpret: bool) -> bool:
    """Whether the triton write equals XLA's scatter, bit for bit."""
    pools = llama((1, 4096)).pool(1)
    new = [x[:8, :, 0] for x in pools]
    slots = jnp.asarray([16, 33, -1, 700, 4000, 31, 2, 90], jnp.int32)
    got = triton_cache.write_kv(*new, *pools, slots, interpret=interpret)
    want = xla.write_kv(*new, *pools, slots)
    return all(bool((x == y).all()) for x, y in zip(got, want, strict=True))


def jax_paged(timing: Timing, shape: Shape) -> float:
    """JAX's example kernel on the same batch: one query token a sequence."""
    from jax.experimental.pallas.ops.gpu import paged_attention as theirs

    q, tables, contexts, _ = shape.batch()
    k, v = (x.swapaxes(0, 1) for x in shape.pool(7))

    def step(q: jax.Array, *args: jax.Array) -> jax.Array:
        return theirs.paged_attention(q, *args).astype(q.dtype)

    return timing.seconds(step, q * shape.head_dim**-0.5, k, v, tables, contexts)


def torch_sdpa(timing: Timing, shape: Shape) -> float:
    """PyTorch's attention over contiguous keys and values of equal length."""
    import torch

    query, context = shape.sequences[0]
    count, kind = len(shape.sequences), {"device": "cuda", "dtype": torch.bfloat16}
    q = torch.randn(count, shape.heads, query, shape.head_dim, **kind)
    k, v = (torch.randn(count, shape.kv_heads, context, shape.head_dim, **kind) for _ in range(2))
    attend = torch.nn.functional.scaled_dot_product_attention
    times = []
    for _ in range(timing.samples + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(timing.repeats):
            attend(q, k, v, is_causal=query > 1, enable_gqa=True)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / timing.repeats)
    return min(times[1:])


def llama(*sequences: tuple[int, int], kv_dtype: Any = None) -> Shape:
    return Shape(sequences, 32, 8, 128, dtype=jnp.bfloat16, kv_dtype=kv_dtype)


def toy(*sequences: tuple[int, int], kv_dtype: Any = None) -> Shape:
    return Shape(sequences, 4, 2, 64, dtype=jnp.bfloat16, kv_dtype=kv_dtype)


_MIXED = ((1, 640), (30, 300), (17, 17), (1, 1), (3, 257), (1, 5000), (129, 129))
FULL = KernelBench(
    Timing(),
    checks={
        "bf16": (llama(*_MIXED), {}),
        "fp16": (Shape(_MIXED, 32, 8, 128, dtype=jnp.float16), {}),
        "fp32": (Shape(_MIXED, 9, 3, 64), {}),
        "e4m3": (llama(*_MIXED, kv_dtype=jnp.float8_e4m3fn), {"k_scale": 0.5, "v_scale": 2.0}),
        "e5m2": (llama(*_MIXED, kv_dtype=jnp.float8_e5m2), {}),
        "mqa": (Shape(_MIXED, 16, 1, 128, dtype=jnp.bfloat16), {}),
        "head_80": (Shape(_MIXED, 8, 8, 80, dtype=jnp.bfloat16), {}),
        "head_256": (Shape(_MIXED, 8, 4, 256, 128, dtype=jnp.bfloat16), {"softcap": 20.0}),
        "window_sinks": (
            Shape(_MIXED, 64, 8, 64, 32, dtype=jnp.bfloat16),
            {"window": 128, "sinks": True},
        ),
    },
    decode={
        "64x4096": llama(*repeat(64, 1, 4096)),
        "1x32768": llama((1, 32768)),
        "256x1024": llama(*repeat(256, 1, 1024)),
        "64x4096_e4m3": llama(*repeat(64, 1, 4096), kv_dtype=jnp.float8_e4m3fn),
        "64x4096_e5m2": llama(*repeat(64, 1, 4096), kv_dtype=jnp.float8_e5m2),
        "ragged_64": llama(*((1, 64 << (i % 9)) for i in range(64))),
    },
    prefill={
        "1x8192": llama((8192, 8192)),
        "8x2048": llama(*repeat(8, 2048, 2048)),
        "chunk_512_of_8192": llama((512, 8192)),
    },
)
DRY = KernelBench(
    QUICK,
    checks={"bf16": (toy((1, 40), (5, 30)), {})},
    decode={
        "64x4096": toy((1, 40)),
        "64x4096_e4m3": toy((1, 40), kv_dtype=jnp.float8_e4m3fn),
    },
    prefill={"1x8192": toy((33, 33))},
    interpret=True,
)
