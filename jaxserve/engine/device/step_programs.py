"""StepPrograms: the functions that a step consists of, and how they are compiled.

The embedding and each kind of layer group exist once a bucket, the head with its sampler once a
number of rows. A step that verifies guesses has an embedding and a sampler of its own, and shares
the layers of the decode of as many rows. All are compiled before the engine is ready.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from threading import Event
from typing import Any

import jax
import jax.numpy as jnp
from jax.export import register_namedtuple_serialization

from jaxserve.engine.device.adapters.adapter_layout import AdapterLayout
from jaxserve.engine.device.adapters.step_model import StepModel
from jaxserve.engine.device.buckets import Bucket
from jaxserve.engine.device.compilation.compile_jobs import CompileJob, compile_jobs, trace
from jaxserve.engine.device.compilation.traced_programs import TracedPrograms
from jaxserve.engine.device.layer_groups import LayerGroup, SplitModel, SplitParams
from jaxserve.engine.device.paged_cache import Pages, StepCaches
from jaxserve.engine.device.step import (
    COPIES,
    PIECE,
    CopyBlocks,
    EmbedOutput,
    Step,
    StepOutput,
    StepState,
)
from jaxserve.engine.device.step_batch import (
    DrawRows,
    StepBatch,
    StepInts,
    advance,
    int_shapes,
    place,
    size,
    split,
    token_adapters,
)
from jaxserve.models.weights import AdapterRows
from jaxserve.sampling.guesses import GuessRows, taken_rows
from jaxserve.sampling.logit_processors import SamplingTables, count
from jaxserve.sampling.logprobs import Logprobs, logprobs_of, token_logprobs
from jaxserve.sampling.row_settings import unpack
from jaxserve.sampling.sampler import sample
from pallas_kernels import copy_blocks

_PAIRS = jax.ShapeDtypeStruct((2, COPIES), jnp.int32)

for _kind in (
    *(StepBatch, EmbedOutput, StepOutput, SamplingTables, Logprobs),
    *(StepState, SplitParams, AdapterRows),
):
    register_namedtuple_serialization(_kind, serialized_name=f"jaxserve.{_kind.__name__}")


@dataclass(frozen=True, slots=True)
class StepPrograms:
    """Makes and compiles the programs of all buckets.

    Args:
        block_size: tokens P of a block.
        vocab: tokens that may be drawn; the model's head may be padded beyond it.
        one_by_one: see sampling.sampler.sample.
        decode_steps: see EngineConfig.
        traced: traced programs on disk; None: trace all of them.
        adapters: the adapter slots; then every program also exists with adapters.
    """

    model: SplitModel
    block_size: int
    vocab: int
    one_by_one: bool
    decode_steps: int = 1
    traced: TracedPrograms | None = None
    adapters: AdapterLayout | None = None

    def _embed(self, own: StepModel, bucket: Bucket) -> Callable[..., EmbedOutput]:
        def embed(
            outer: list[jax.Array], last_tokens: jax.Array, tables: jax.Array, ints: jax.Array
        ) -> EmbedOutput:
            fields = StepInts(*split(ints, int_shapes(bucket)))
            known = fields.tokens >= 0
            last = last_tokens[jnp.where(known, 0, -fields.tokens - 1)]
            adapters = None if own.adapters is None else token_adapters(fields, own.slots)
            model = own.embedding(outer, adapters)
            x = model.embedded(jnp.where(known, fields.tokens, last))
            slots, groups, indices, blocks = fields.entries
            tables = tables.at[groups, slots, indices].set(blocks, mode="drop")
            used = jnp.arange(len(x)) < fields.query_starts[-1]
            x = jnp.where(used[:, None], x, 0)  # the CPU kernels skip rows of zeros
            batch = place(fields, tables, self.block_size)._replace(adapters=adapters)
            return EmbedOutput(x, batch, fields.draws, tables)

        return embed

    def _run_group(
        self, own: StepModel, group: LayerGroup, bucket: Bucket
    ) -> Callable[..., tuple[jax.Array, jax.Array, Pages]]:
        def run(
            params: list[jax.Array], pages: Pages, x: jax.Array, batch: StepBatch
        ) -> tuple[jax.Array, jax.Array, Pages]:
            """x [T, E], the rows to draw from [R, E], and the pages written."""
            longest = 1 if bucket.decode else bucket.tokens
            caches = StepCaches(pages, group.places, batch, longest)
            model = own.layers(group, params, batch.adapters)
            x = model.run(group.layers, x, batch.positions, caches)
            ends = batch.query_starts[1:]
            real = ends > batch.query_starts[:-1]
            rows = jnp.where(real[:, None], x[jnp.maximum(ends - 1, 0)], 0)
            rows = jnp.pad(rows, ((0, bucket.drawn - bucket.rows), (0, 0)))
            return x, rows, caches.pages

        return run

    def _draw(
        self,
        model: StepModel,
        head: list[jax.Array],
        last_tokens: jax.Array,
        tables: SamplingTables,
        rows: jax.Array,
        draws: jax.Array,
    ) -> tuple[jax.Array, SamplingTables, StepOutput]:
        own = DrawRows.split(draws)
        floats = jax.lax.bitcast_convert_type(own.floats, jnp.float32)
        asked = unpack(own.ints, floats, own.slots, own.output_positions)
        if own.guesses.shape[1]:
            asked = asked._replace(guesses=GuessRows.split(own.guesses))
        logits = self._logits(model, head, rows, own.adapters)
        ids = sample(logits, asked, tables, self.one_by_one)
        logprobs = token_logprobs(
            logits, jnp.maximum(ids, 0), asked.num_logprobs >= 0, self.one_by_one
        )
        output = StepOutput(ids, logprobs)
        kept = last = (own.keep > 0) & (ids >= 0)
        if asked.guesses is not None:
            kept, last = taken_rows(asked.guesses, ids, kept)
        slots = jnp.where(last, own.slots, len(last_tokens))  # one row a slot at most
        last_tokens = last_tokens.at[slots].set(ids, mode="drop")
        tables = tables._replace(counts=count(tables.counts, own.slots, ids, kept))
        return last_tokens, tables, output

    def _repeat(
        self, own: StepModel, bucket: Bucket
    ) -> Callable[..., tuple[StepState, StepOutput]]:
        """A decode's programs in one, repeated decode_steps times."""
        groups, growth = self.model.groups, advance(bucket)
        run = [self._run_group(own, groups[group.kind], bucket) for group in groups]
        step_of: Any = Step  # takes functions here, where its fields say compiled programs
        draw = partial(self._draw, own)
        step = step_of(groups, self._embed(own, bucket), run, draw, None, None, None)

        def repeat(
            params: SplitParams, state: StepState, ints: jax.Array
        ) -> tuple[StepState, StepOutput]:
            def once(state: StepState, nth: jax.Array) -> tuple[StepState, StepOutput]:
                state, layers = step.layers(params, state, ints + nth * growth)
                return step.sample(params, state, layers)

            return jax.lax.scan(once, state, jnp.arange(self.decode_steps))

        return repeat

    def _take(self, hidden: jax.Array, first: jax.Array) -> jax.Array:
        padded = jnp.pad(hidden, ((0, PIECE), (0, 0)))
        return jax.lax.dynamic_slice_in_dim(padded, first, PIECE)

    def _prompt_logprobs(
        self,
        own: StepModel,
        head: list[jax.Array],
        hidden: jax.Array,
        targets: jax.Array,
        adapters: jax.Array,
    ) -> Logprobs[jax.Array]:
        return logprobs_of(self._logits(own, head, hidden, adapters), targets)

    def _pool(self, outer: list[jax.Array], rows: jax.Array) -> jax.Array:
        """The model's last hidden states of rows [R, E], in float32 and of length 1."""
        hidden = self.model.merge(self.model.outer, outer).norm(rows).astype(jnp.float32)
        return hidden / jnp.linalg.norm(hidden, axis=-1, keepdims=True)

    def _logits(
        self, own: StepModel, head: list[jax.Array], x: jax.Array, adapters: jax.Array
    ) -> jax.Array:
        model = own.head(head, adapters)
        return model.logits(model.norm(x))[:, : self.vocab]

    def compile_all(
        self, buckets: tuple[Bucket, ...], state: StepState, progress: bool, stop: Event
    ) -> tuple[dict[tuple[Bucket, bool], Step], CopyBlocks]:
        """Compiles every bucket's programs, and the one that copies blocks.

        Args:
            state: shapes are enough.
            stop: as of compile_jobs().

        Returns:
            The steps by bucket and by whether a row may have an adapter.
        """
        models = [StepModel(self.model)]
        if self.adapters is not None:
            models.append(StepModel(self.model, self.adapters))
        jobs: dict[Hashable, CompileJob] = {}
        for own in models:
            for bucket in buckets:
                jobs |= self.jobs(bucket, state, own)
        for k, v in state.pages:
            jobs.setdefault(("copy", k.shape, v.shape), CompileJob(_copy, (k, v, _PAIRS), (0, 1)))
        lower = trace if self.traced is None else self.traced.lower
        done = compile_jobs(jobs, progress, stop, lower)
        copy = CopyBlocks([done["copy", k.shape, v.shape] for k, v in state.pages])
        steps = {
            (bucket, own.adapters is not None): Step(
                self.model.groups,
                done["embed", bucket, *own.identity],
                [done["layers", bucket.plain, g.kind, *own.identity] for g in self.model.groups],
                done["draw", bucket.drawn, bucket.guesses, *own.head_identity],
                done.get(("take", bucket.tokens)),
                done["logprobs", *own.head_identity],
                None if bucket.decode else done["pool", bucket.drawn],
                done.get(("repeat", bucket, self.decode_steps, *own.identity)),
            )
            for own in models
            for bucket in buckets
        }
        return steps, copy

    def jobs(
        self, bucket: Bucket, state: StepState, own: StepModel | None = None
    ) -> dict[Hashable, CompileJob]:
        """The jobs of a bucket's programs. A key begins with the program's name; equal keys of two
        buckets are the same program.

        Args:
            own: the model as they compute it; None is without adapters.
        """
        own = own or StepModel(self.model)
        params = own.shapes()
        ints = jax.ShapeDtypeStruct((size(int_shapes(bucket)),), jnp.int32)
        embed, last, tables = self._embed(own, bucket), state.last_tokens, state.tables
        inputs = (params.outer, last, state.block_tables, ints)
        x, batch, draws, _ = jax.eval_shape(embed, *inputs)
        rows, piece = (
            jax.ShapeDtypeStruct((n, x.shape[1]), x.dtype) for n in (bucket.drawn, PIECE)
        )
        targets = jax.ShapeDtypeStruct((PIECE,), jnp.int32)
        head, outer = params.head, self.model.split_params(self.model.shapes).outer
        jobs: dict[Hashable, CompileJob] = {
            ("embed", bucket, *own.identity): CompileJob(embed, inputs, (2,)),
            ("draw", bucket.drawn, bucket.guesses, *own.head_identity): CompileJob(
                partial(self._draw, own), (head, last, tables, rows, draws), (1, 2)
            ),
            ("logprobs", *own.head_identity): CompileJob(
                partial(self._prompt_logprobs, own), (head, piece, targets, targets)
            ),
        }
        if not bucket.decode:
            jobs["take", bucket.tokens] = CompileJob(
                self._take, (x, jax.ShapeDtypeStruct((), jnp.int32))
            )
            jobs["pool", bucket.drawn] = CompileJob(self._pool, (outer, rows))
        elif self.decode_steps > 1 and not bucket.guesses:
            job = CompileJob(self._repeat(own, bucket), (params, state, ints), (1,))
            jobs["repeat", bucket, self.decode_steps, *own.identity] = job
        for group, theirs in zip(self.model.groups, params.groups, strict=True):
            run = self._run_group(own, self.model.groups[group.kind], bucket)
            job = CompileJob(run, (theirs, group.select(state.pages), x, batch), (1, 2))
            jobs.setdefault(("layers", bucket.plain, group.kind, *own.identity), job)
        return jobs


def _copy(k_pages: jax.Array, v_pages: jax.Array, pairs: jax.Array) -> tuple[jax.Array, jax.Array]:
    return copy_blocks(k_pages, v_pages, pairs[0], pairs[1])
