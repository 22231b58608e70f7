"""The step: one jitted function from a batch to sampled tokens, compiled once a bucket."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax.stages import Compiled
from tqdm import tqdm

from jaxserve.engine.batch import StepInts, float_shape, int_shapes, size, split
from jaxserve.engine.buckets import Bucket
from jaxserve.engine.cache_layout import CacheLayout
from jaxserve.engine.paged_cache import Pages, StepCaches
from jaxserve.sampling.logprobs import Logprobs, prompt_logprobs, token_logprobs
from jaxserve.sampling.processors import SamplingTables, count
from jaxserve.sampling.rows import unpack
from jaxserve.sampling.sampler import sample


class StepState(NamedTuple):
    """Device state that a step takes over and gives back.

    Args:
        pages: the KV pool.
        last_tokens: [N+1] int32, each slot's last sampled token.
        tables: each slot's sampling tables.
    """

    pages: Pages
    last_tokens: jax.Array
    tables: SamplingTables


class StepOutput(NamedTuple):
    """What a step tells the host.

    Args:
        ids: [S] int32, sampled tokens; -1 where the logits weren't finite.
        logprobs: of the sampled tokens, R = S; zeros if no row asks for them.
        prompt_logprobs: of the targets, R = T; None in a pure decode.
    """

    ids: jax.Array
    logprobs: Logprobs[jax.Array]
    prompt_logprobs: Logprobs[jax.Array] | None


@dataclass(frozen=True, slots=True)
class StepProgram:
    """What every bucket's program shares.

    Args:
        graphdef: the model, split from its parameters once.
        structure: tree structure of the parameters, which travel as a flat list of leaves.
        layout: which block table and buffer each layer uses.
        width: block table width W.
        vocab: tokens that may be drawn; the model's head may be padded beyond it.
    """

    graphdef: nnx.GraphDef
    structure: jax.tree_util.PyTreeDef
    layout: CacheLayout
    width: int
    vocab: int

    def function(self, bucket: Bucket) -> Callable[..., tuple[StepState, StepOutput]]:
        """The step of one bucket: (params, state, ints, floats) -> (state, output)."""

        def step(
            params: list[jax.Array], state: StepState, ints: jax.Array, floats: jax.Array
        ) -> tuple[StepState, StepOutput]:
            batch = StepInts(*split(ints, self._int_shapes(bucket)))
            rows = unpack(batch.settings, floats, batch.slots, batch.output_positions)
            pages, last_tokens, tables = state
            model = nnx.merge(self.graphdef, jax.tree.unflatten(self.structure, params))
            known = batch.tokens >= 0
            tokens = jnp.where(
                known, batch.tokens, last_tokens[jnp.where(known, 0, -batch.tokens - 1)]
            )
            caches = StepCaches(self.layout, pages, batch, 1 if bucket.decode else bucket.tokens)

            def head(hidden: jax.Array) -> jax.Array:
                return model.logits(hidden)[:, : self.vocab]

            hidden = model(tokens, batch.positions, caches)
            ends = jnp.maximum(batch.query_starts[1:] - 1, 0)  # last token of each row
            logits = head(hidden[ends])
            ids = sample(logits, rows, tables)
            output = StepOutput(
                ids,
                token_logprobs(logits, jnp.maximum(ids, 0), rows.num_logprobs >= 0),
                None if bucket.decode else prompt_logprobs(hidden, batch.targets, head, self.vocab),
            )
            kept = (batch.keep > 0) & (ids >= 0)
            last_tokens = last_tokens.at[batch.slots].set(
                jnp.where(kept, ids, last_tokens[batch.slots])
            )
            tables = tables._replace(counts=count(tables.counts, batch.slots, ids, kept))
            return StepState(caches.pages, last_tokens, tables), output

        return step

    def compile_all(
        self,
        buckets: tuple[Bucket, ...],
        params: list[jax.Array],
        state: StepState,
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
                ints = jax.ShapeDtypeStruct((size(self._int_shapes(bucket)),), jnp.int32)
                floats = jax.ShapeDtypeStruct(float_shape(bucket), jnp.float32)
                jitted = jax.jit(self.function(bucket), donate_argnums=1)
                lowered = jitted.lower(params, state, ints, floats)
                futures[bucket] = pool.submit(lowered.compile)
                futures[bucket].add_done_callback(lambda _: bar.update())
            for bucket, future in futures.items():
                compiled[bucket] = future.result()
        return compiled

    def _int_shapes(self, bucket: Bucket) -> tuple[tuple[int, ...], ...]:
        return int_shapes(bucket, self.width, len(self.layout.groups))
