"""What the sampler costs a step, beside the plain way of sorting the whole vocabulary.

    python bench/sampling.py [--rows 1 32 256] [--vocab 128256] [--repeats 5]

Milliseconds of one compiled call, median, by rows and by what the rows ask for. The last line is
one flat JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from jaxserve.sampling.params import SamplingParams
from jaxserve.sampling.processors import SamplingTables
from jaxserve.sampling.rows import SamplingRows, pack, unpack
from jaxserve.sampling.sampler import sample

KINDS = {
    "greedy": SamplingParams(temperature=0),
    "temperature": SamplingParams(),
    "top_k": SamplingParams(top_k=50),
    "top_p": SamplingParams(top_p=0.9),
    "top_k_top_p": SamplingParams(top_k=50, top_p=0.9),
    "penalties": SamplingParams(temperature=0, repetition_penalty=1.1, presence_penalty=0.5),
}


def settings(params: SamplingParams, rows: int) -> SamplingRows:
    """The same request in every row, each with a seed of its own."""
    ints, floats = map(np.stack, zip(*(pack(params, i, False) for i in range(rows)), strict=True))
    slots = jnp.arange(rows)
    return unpack(jnp.asarray(ints), jnp.asarray(floats), slots, jnp.zeros_like(slots))


def plain_sort(logits: jax.Array, rows: SamplingRows) -> jax.Array:
    """top_k and top_p the plain way: sort, cut, draw."""
    order = jnp.argsort(-logits, axis=-1)
    probabilities = jax.nn.softmax(jnp.take_along_axis(logits, order, axis=-1), axis=-1)
    place = jnp.arange(logits.shape[-1])
    before = jnp.cumsum(probabilities, axis=-1) - probabilities
    top_k = jnp.where(rows.top_k > 0, rows.top_k, logits.shape[-1])
    kept = (place < top_k[:, None]) & (before < rows.top_p[:, None])
    drawn = jax.random.categorical(
        jax.random.key(0), jnp.where(kept, jnp.log(probabilities), -jnp.inf)
    )
    return jnp.take_along_axis(order, drawn[:, None], axis=-1)[:, 0]


def milliseconds(repeats: int, call: Callable[..., jax.Array], *args: object) -> float:
    run = partial(call, *args)
    run().block_until_ready()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run().block_until_ready()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--vocab", type=int, default=128_256)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    figures: dict[str, float | int | str] = {
        "device": jax.devices()[0].device_kind,
        "vocab": args.vocab,
    }
    for rows in args.rows:
        logits = jnp.asarray(
            np.random.default_rng(0).normal(0, 3, (rows, args.vocab)).astype(np.float32)
        )
        tables = SamplingTables.allocate(rows + 1, args.vocab)
        ours = jax.jit(sample).lower(logits, settings(KINDS["greedy"], rows), tables).compile()
        theirs = jax.jit(plain_sort).lower(logits, settings(KINDS["greedy"], rows)).compile()
        for name, params in KINDS.items():
            asked = settings(params, rows)
            figures[f"{name}_{rows}_ms"] = round(
                milliseconds(args.repeats, ours, logits, asked, tables), 3
            )
        asked = settings(KINDS["top_k_top_p"], rows)
        figures[f"plain_sort_{rows}_ms"] = round(
            milliseconds(args.repeats, theirs, logits, asked), 3
        )
        print({name: value for name, value in figures.items() if f"_{rows}_ms" in name})
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
