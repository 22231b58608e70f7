"""Time of the sampler, beside a bare argmax and beside sorting the whole vocabulary.

    python -m bench.kernels.sampler [--rows 1 32 256] [--vocab 128256] [--repeats 5]

Median milliseconds of one compiled call, by rows and by the rows' sampling parameters. Each call
computes its logits by a narrow matmul, whose time `argmax` includes, because XLA's CPU backend
would copy logits that are arguments, which no step of the engine does. The last line is one flat
JSON object.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from bench.common.figures import Figures, print_figures
from jaxserve.sampling.logit_processors import SamplingTables
from jaxserve.sampling.params import SamplingParams
from jaxserve.sampling.row_settings import SamplingRows, pack, unpack
from jaxserve.sampling.sampler import sample

HIDDEN = 64  # inner size of the matmul

KINDS = {
    "greedy": SamplingParams(temperature=0),
    "temperature": SamplingParams(),
    "top_k": SamplingParams(top_k=50),
    "top_p": SamplingParams(top_p=0.9),
    "top_k_top_p": SamplingParams(top_k=50, top_p=0.9),
    "penalties": SamplingParams(temperature=0, repetition_penalty=1.1, presence_penalty=0.5),
}


def settings(params: SamplingParams, rows: int) -> SamplingRows:
    """The same parameters in every row, each with a seed of its own."""
    ints, floats = map(np.stack, zip(*(pack(params, i, False) for i in range(rows)), strict=True))
    slots = jnp.arange(rows)
    return unpack(jnp.asarray(ints), jnp.asarray(floats), slots, jnp.zeros_like(slots))


def argmax(logits: jax.Array) -> jax.Array:
    return jnp.argmax(logits, axis=-1)


def plain_sort(logits: jax.Array, rows: SamplingRows) -> jax.Array:
    """top_k and top_p by sorting the vocabulary, cutting it and drawing from the rest."""
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
    return round(statistics.median(times), 3)


def measure(rows: int, vocab: int, repeats: int) -> dict[str, float]:
    """Milliseconds for so many rows, by kind."""
    random = np.random.default_rng(0)
    hidden = jnp.asarray(random.normal(0, 1, (rows, HIDDEN)), jnp.float32)
    head = jnp.asarray(random.normal(0, 3 / HIDDEN**0.5, (HIDDEN, vocab)), jnp.float32)
    asked = {name: settings(params, rows) for name, params in KINDS.items()}
    tables = SamplingTables.allocate(rows + 1, vocab)

    def compiled(choose: Callable[..., jax.Array], *args: object) -> Callable[..., jax.Array]:
        step = jax.jit(lambda hidden, head, *args: choose(hidden @ head, *args))
        return step.lower(hidden, head, *args).compile()

    time_of = partial(milliseconds, repeats)
    figures = {"argmax": time_of(compiled(argmax), hidden, head)}
    on_cpu = jax.default_backend() == "cpu"
    ours = compiled(partial(sample, one_by_one=on_cpu), asked["greedy"], tables)
    for name, wanted in asked.items():
        figures[name] = time_of(ours, hidden, head, wanted, tables)
    theirs = compiled(plain_sort, asked["top_k_top_p"])
    figures["plain_sort"] = time_of(theirs, hidden, head, asked["top_k_top_p"])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 32, 256])
    parser.add_argument("--vocab", type=int, default=128_256)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    figures: Figures = {
        "device": jax.devices()[0].device_kind,
        "vocab": args.vocab,
    }
    for rows in args.rows:
        measured = measure(rows, args.vocab, args.repeats)
        print(f"{rows} rows, ms: {measured}", flush=True)
        figures |= {f"{name}_{rows}_ms": value for name, value in measured.items()}
    print_figures(figures)


if __name__ == "__main__":
    main()
