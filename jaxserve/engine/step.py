"""The step: one jitted function from a batch to sampled tokens, compiled once a bucket."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx
from jax.stages import Compiled
from tqdm import tqdm

from jaxserve.engine.batch import (
    StepFloats,
    StepInts,
    float_shapes,
    int_shapes,
    sampling_rows,
    size,
    split,
)
from jaxserve.engine.buckets import Bucket
from jaxserve.engine.paged_cache import PagedLayerCache, Pages
from jaxserve.sampling.sampler import sample

StepOutput = tuple[Pages, jax.Array, jax.Array]  # pages, last_tokens [N+1], sampled ids [S]


@dataclass(frozen=True, slots=True)
class StepProgram:
    """What every bucket's program shares.

    Args:
        graphdef: the model, split from its parameters once.
        structure: tree structure of the parameters, which travel as a flat list of leaves.
        width: block table width W.
    """

    graphdef: nnx.GraphDef
    structure: jax.tree_util.PyTreeDef
    width: int

    def function(self, bucket: Bucket) -> Callable[..., StepOutput]:
        """The step of one bucket: (params, pages, last_tokens, ints, floats) -> StepOutput."""

        def step(
            params: list[jax.Array],
            pages: Pages,
            last_tokens: jax.Array,
            ints: jax.Array,
            floats: jax.Array,
        ) -> StepOutput:
            batch = StepInts(*split(ints, int_shapes(bucket, self.width)))
            settings = StepFloats(*split(floats, float_shapes(bucket)))
            model = nnx.merge(self.graphdef, jax.tree.unflatten(self.structure, params))
            known = batch.tokens >= 0
            tokens = jnp.where(
                known, batch.tokens, last_tokens[jnp.where(known, 0, -batch.tokens - 1)]
            )
            caches = [
                PagedLayerCache(
                    k,
                    v,
                    batch.write_slots,
                    batch.block_tables,
                    batch.context_lens,
                    batch.query_starts,
                    1 if bucket.decode else bucket.tokens,
                )
                for k, v in pages
            ]
            hidden, caches = model(tokens, batch.positions, caches)
            ends = jnp.maximum(batch.query_starts[1:] - 1, 0)  # last token of each row
            ids = sample(model.logits(hidden[ends]), sampling_rows(batch, settings))
            kept = jnp.where(batch.keep > 0, ids, last_tokens[batch.slots])
            last_tokens = last_tokens.at[batch.slots].set(kept)
            return [(c.k_pages, c.v_pages) for c in caches], last_tokens, ids

        return step

    def compile_all(
        self,
        buckets: tuple[Bucket, ...],
        params: list[jax.Array],
        pages: Pages,
        last_tokens: jax.Array,
        progress: bool,
    ) -> dict[Bucket, Compiled]:
        """Compiles every bucket; tracing is serial, XLA's part runs in threads beside it."""
        compiled = {}
        with (
            ThreadPoolExecutor(max_workers=2) as pool,
            tqdm(total=len(buckets), desc="compile", unit="step", disable=not progress) as bar,
        ):
            futures = {}
            for bucket in buckets:
                ints = jax.ShapeDtypeStruct((size(int_shapes(bucket, self.width)),), jnp.int32)
                floats = jax.ShapeDtypeStruct((size(float_shapes(bucket)),), jnp.float32)
                jitted = jax.jit(self.function(bucket), donate_argnums=(1, 2))
                lowered = jitted.lower(params, pages, last_tokens, ints, floats)
                futures[bucket] = pool.submit(lowered.compile)
                futures[bucket].add_done_callback(lambda _: bar.update())
            for bucket, future in futures.items():
                compiled[bucket] = future.result()
        return compiled
