"""The same model in plain PyTorch, given the same steps; runs in PyTorch's environment.

PYTHON -m bench.twin.torch_runner FOLDER DTYPE DEVICE MODE PASSES

FOLDER holds model.safetensors, model.json and plans.npz (see bench/twin/__main__.py). MODE is
`compile` or `eager`. KV pages are gathered for scaled_dot_product_attention: those of decode rows
together, padded to the longest context, and those of each prompt alone. The input of each step is
what ours sampled in the step before, so that one near tie does not change all later tokens. The
last line is JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from bench.twin.trace import PackedStep, load, peak_resident_mib, random_pages

SEGMENT = 5  # layers in one compiled program, as in ours on a CPU
Pair = tuple[torch.Tensor, torch.Tensor]
Layer = tuple[torch.Tensor, ...]


class Batch(NamedTuple):
    """A step on the device.

    Args:
        rows: [S], last token of each row.
        decodes: D, rows of one token, which come first.
        tables: [D, W], their pages.
        seen: [D, 1, 1, W * P], True where a key counts.
        chunks: of each other row its first token, its end, its pages [W'], its context length.
    """

    tokens: torch.Tensor
    positions: torch.Tensor
    write_slots: torch.Tensor
    rows: torch.Tensor
    decodes: int
    tables: torch.Tensor
    seen: torch.Tensor
    chunks: list[tuple[int, int, torch.Tensor, int]]


class Twin:
    """A Llama and its paged KV cache.

    Args:
        shape: model.json.
        weights: by our names, in our shapes.
    """

    def __init__(
        self,
        shape: dict[str, Any],
        weights: dict[str, torch.Tensor],
        dtype: torch.dtype,
        device: str,
    ) -> None:
        self.kv_heads, self.head_dim = shape["kv_heads"], shape["head_dim"]
        self.eps, self.page = shape["eps"], shape["block_size"]

        def take(name: str, inputs: int | None = None) -> torch.Tensor:
            """A parameter; a matrix in the layout of F.linear, [out, in]."""
            value = weights[name]
            if inputs is not None:
                value = value.reshape(-1, inputs)
            return value.to(device, dtype).contiguous()

        self.embedding = take("embed.embedding")
        hidden = self.embedding.shape[1]
        self.head = take("head.embedding") if "head.embedding" in weights else self.embedding
        self.norm = take("norm.scale")
        inner = weights["layers.0.mlp.down"].shape[1]
        attended = weights["layers.0.attention.out"].shape[1:].numel()
        self.layers = [
            (
                take(f"layers.{i}.input_norm.scale"),
                take(f"layers.{i}.attention.qkv", hidden),
                take(f"layers.{i}.attention.out", attended),
                take(f"layers.{i}.post_attention_norm.scale"),
                take(f"layers.{i}.mlp.gate_up", hidden),
                take(f"layers.{i}.mlp.down", inner),
            )
            for i in range(shape["layers"])
        ]
        angles = torch.outer(
            torch.arange(shape["context"]), torch.tensor(shape["inverse_frequencies"])
        ).float()
        self.cos = (angles.cos() * shape["rope_factor"]).to(device)
        self.sin = (angles.sin() * shape["rope_factor"]).to(device)
        tokens = shape["num_blocks"] * self.page
        pages = random_pages(tokens, self.kv_heads, self.head_dim)
        k, v = (torch.from_numpy(x).to(device, dtype) for x in pages)
        self.pages = [(k.clone(), v.clone()) for _ in self.layers]  # [B * P, K, D] each

    def forward(self, batch: Batch, segment: Callable[..., torch.Tensor]) -> torch.Tensor:
        """Logits [S, V]; `segment` is run_layers or a compiled form of it."""
        x = self.embedding[batch.tokens]
        rope = self.cos[batch.positions, None], self.sin[batch.positions, None]
        for first in range(0, len(self.layers), SEGMENT):
            own = slice(first, first + SEGMENT)
            x = segment(x, rope, self.layers[own], self.pages[own], batch)
        return F.linear(self._rms(x[batch.rows], self.norm), self.head)

    def run_layers(
        self, x: torch.Tensor, rope: Pair, layers: list[Layer], pages: list[Pair], batch: Batch
    ) -> torch.Tensor:
        """Some layers, on x [T, E]."""
        for layer, (k_pages, v_pages) in zip(layers, pages, strict=True):
            in_norm, qkv, out, post_norm, gate_up, down = layer
            rows = F.linear(self._rms(x, in_norm), qkv)
            rows = rows.view(len(x), self.kv_heads, -1, self.head_dim)  # [T, K, G+2, D]
            q, k, v = rows[:, :, :-2], rows[:, :, -2], rows[:, :, -1]
            q = _rotated(q.flatten(1, 2), *rope).view_as(q)
            k_pages[batch.write_slots] = _rotated(k, *rope)
            v_pages[batch.write_slots] = v
            x = x + F.linear(self._attention(q, k_pages, v_pages, batch), out)
            gate, up = F.linear(self._rms(x, post_norm), gate_up).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, down)
        return x

    def _rms(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        f = x.float()
        return (f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + self.eps)).to(x.dtype) * scale

    def _attention(
        self, q: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor, batch: Batch
    ) -> torch.Tensor:
        """Heads side by side [T, H * D] for q [T, K, G, D]."""
        parts = []
        if batch.decodes:
            k, v = (self._gather(p, batch.tables) for p in (k_pages, v_pages))
            # The query heads of a group share their keys, as query tokens of one head do.
            own = q[: batch.decodes]
            out = F.scaled_dot_product_attention(own, k, v, attn_mask=batch.seen)
            parts.append(out.flatten(1))
        for first, end, table, context in batch.chunks:
            k, v = (self._gather(p, table[None])[:, :, :context] for p in (k_pages, v_pages))
            own = q[first:end].flatten(1, 2).transpose(0, 1)[None]  # [1, H, n, D]
            n = end - first
            mask = None
            if n != context:
                device = q.device
                mask = torch.arange(context, device=device) <= torch.arange(
                    context - n, context, device=device
                ).unsqueeze(1)
            out = F.scaled_dot_product_attention(
                own, k, v, attn_mask=mask, is_causal=mask is None, enable_gqa=True
            )
            parts.append(out[0].transpose(0, 1).flatten(1))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _gather(self, pages: torch.Tensor, tables: torch.Tensor) -> torch.Tensor:
        """[S, K, W * P, D] of the pages in tables [S, W]."""
        gathered = pages.view(-1, self.page, self.kv_heads, self.head_dim)[tables]
        return gathered.flatten(1, 2).transpose(1, 2)


def _rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.float().chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1).to(x.dtype)


def to_device(step: PackedStep, last: torch.Tensor, page: int, device: str) -> Batch:
    """The step's arrays, with the last tokens filled in."""
    lengths = np.diff(step.query_starts)
    decodes = int((lengths > 1).argmax()) if (lengths > 1).any() else len(lengths)

    def up(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, np.int64)).to(device)

    tokens = up(step.tokens)
    tokens = torch.where(tokens < 0, last[(-1 - tokens).clamp(min=0)], tokens)
    contexts = step.context_lens
    width = -(-int(contexts[:decodes].max(initial=0)) // page)
    seen = np.arange(width * page) < contexts[:decodes, None]
    return Batch(
        tokens,
        up(step.positions),
        up(step.write_slots),
        up(step.query_starts[1:] - 1),
        decodes,
        up(step.block_tables[:decodes, :width]),
        torch.from_numpy(seen[:, None, None]).to(device),
        [
            (
                int(step.query_starts[row]),
                int(step.query_starts[row + 1]),
                up(step.block_tables[row, : -(-int(contexts[row]) // page)]),
                int(contexts[row]),
            )
            for row in range(decodes, len(contexts))
        ],
    )


class Differences:
    """How far PyTorch's logits of our sampled tokens are below its largest ones.

    Args:
        equal, rows: sampled tokens that have the largest logit, of how many.
        gap: the largest difference.
    """

    def __init__(self) -> None:
        self.equal = self.rows = 0
        self.gap = 0.0

    def take(self, logits: torch.Tensor, step: PackedStep) -> None:
        """Compares the sampled rows of one step."""
        ids = torch.from_numpy(step.ids).long().to(logits.device)
        own = torch.from_numpy(step.keep).to(logits.device) > 0
        top, best = logits.float().max(-1)
        gaps = top - logits.float().gather(1, ids[:, None])[:, 0]
        self.equal += int((best == ids)[own].sum())
        self.rows += int(own.sum())
        self.gap = max(self.gap, float(gaps[own].max())) if own.any() else self.gap


def replay(
    twin: Twin,
    decode: Callable[..., torch.Tensor],
    steps: list[PackedStep],
    passes: int,
    slots: int,
    device: str,
) -> tuple[list[list[float]], Differences]:
    """Seconds [passes + 1, steps], the first pass being a warm-up; a single pass has none.

    Args:
        decode: runs a segment of a pure decode step, perhaps compiled; other steps run eagerly.
        slots: rows of the table of last tokens.
    """
    seconds, differences = [], Differences()
    for n in range(passes + (passes > 1)):
        taken = []
        last = torch.zeros(slots, dtype=torch.long, device=device)
        for step in steps:
            begin = time.perf_counter()
            segment = decode if step.decode else twin.run_layers
            logits = twin.forward(to_device(step, last, twin.page, device), segment)
            logits.argmax(-1).tolist()
            taken.append(time.perf_counter() - begin)
            kept = step.keep > 0
            last[torch.from_numpy(step.slots[kept]).long()] = (
                torch.from_numpy(step.ids[kept]).long().to(device)
            )
            if n == 0:
                differences.take(logits, step)
        seconds.append(taken)
    return seconds, differences


def main() -> None:
    folder, dtype, device, mode, passes = sys.argv[1:]
    begin = time.perf_counter()
    shape = json.loads((Path(folder) / "model.json").read_text())
    weights = load_file(Path(folder) / "model.safetensors")
    twin = Twin(shape, weights, getattr(torch, dtype), device)
    del weights
    figures: dict[str, Any] = {"load_s": time.perf_counter() - begin}
    decode = twin.run_layers
    if mode == "compile":
        decode = torch.compile(decode, dynamic=True)
    cases: dict[str, Any] = {}
    with torch.inference_mode():
        for name, steps in load(Path(folder) / "plans.npz").items():
            several = 1 if name == "trace" else int(passes)
            seconds, found = replay(twin, decode, steps, several, shape["slots"], device)
            cases[name] = {
                "seconds": seconds,
                "equal": found.equal,
                "rows": found.rows,
                "gap": found.gap,
            }
            print(name, f"{1e3 * np.median(seconds[-1]):.1f} ms", file=sys.stderr, flush=True)
    figures |= {
        "cases": cases,
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "peak_mib": (
            torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else peak_resident_mib()
        ),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
