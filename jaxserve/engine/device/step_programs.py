"""StepPrograms: the functions that a step consists of, and how they are compiled.

The embedding and each kind of layer group exist once a bucket, the head with its sampler once a
number of rows. A step that verifies guesses has an embedding and a sampler of its own, and shares
the layers of the decode of as many rows. All are compiled before the engine is ready.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Event
from typing import Any

import jax
import jax.numpy as jnp
from jax.export import register_namedtuple_serialization

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
)
from jaxserve.sampling.guesses import GuessRows, taken_rows
from jaxserve.sampling.logit_processors import SamplingTables, count
from jaxserve.sampling.logprobs import Logprobs, logprobs_of, token_logprobs
from jaxserve.sampling.row_settings import unpack
from jaxserve.sampling.sampler import sample
from pallas_kernels import copy_blocks

_PAIRS = jax.ShapeDtypeStruct((2, COPIES), jnp.int32)

for _kind in (
    *(StepBatch, EmbedOutput, StepOutput, SamplingTables, Logprobs),
    *(StepState, SplitParams),
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
    """

    model: SplitModel
    block_size: int
    vocab: int
    one_by_one: bool
    decode_steps: int = 1
    traced: TracedPrograms | None = None

    def _embed(self, bucket: Bucket) -> Callable[..., EmbedOutput]:
        def embed(
            outer: list[jax.Array], last_tokens: jax.Array, tables: jax.Array, ints: jax.Array
        ) -> EmbedOutput:
            fields = StepInts(*split(ints, int_shapes(bucket)))
            known = fields.tokens >= 0
            last = last_tokens[jnp.where(known, 0, -fields.tokens - 1)]
            model = self.model.merge(self.model.outer, outer)
            x = model.embedded(jnp.where(known, fields.tokens, last))
            slots, groups, indices, blocks = fields.entries
            tables = tables.at[groups, slots, indices].set(blocks, mode="drop")
            used = jnp.arange(len(x)) < fields.query_starts[-1]
            x = jnp.where(used[:, None], x, 0)  # the CPU kernels skip rows of zeros
            return EmbedOutput(x, place(fields, tables, self.block_size), fields.draws, tables)

        return embed

    def _run_group(
        self, group: LayerGroup, bucket: Bucket
    ) -> Callable[..., tuple[jax.Array, jax.Array, Pages]]:
        def run(
            params: list[jax.Array], pages: Pages, x: jax.Array, batch: StepBatch
        ) -> tuple[jax.Array, jax.Array, Pages]:
            """x [T, E], the rows to draw from [R, E], and the pages written."""
            longest = 1 if bucket.decode else bucket.tokens
            caches = StepCaches(pages, group.places, batch, longest)
            model = self.model.merge(group.leaves, params)
            x = model.run(group.layers, x, batch.positions, caches)
            ends = batch.query_starts[1:]
            real = ends > batch.query_starts[:-1]
            rows = jnp.where(real[:, None], x[jnp.maximum(ends - 1, 0)], 0)
            rows = jnp.pad(rows, ((0, bucket.drawn - bucket.rows), (0, 0)))
            return x, rows, caches.pages

        return run

    def _draw(
        self,
        outer: list[jax.Array],
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
        logits = self._logits(outer, rows)
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

    def _repeat(self, bucket: Bucket) -> Callable[..., tuple[StepState, StepOutput]]:
        """A decode's programs in one, repeated decode_steps times."""
        groups, growth = self.model.groups, advance(bucket)
        run = [self._run_group(groups[group.kind], bucket) for group in groups]
        step_of: Any = Step  # takes functions here, where its fields say compiled programs
        step = step_of(groups, self._embed(bucket), run, self._draw, None, None, None)

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
        self, outer: list[jax.Array], hidden: jax.Array, targets: jax.Array
    ) -> Logprobs[jax.Array]:
        return logprobs_of(self._logits(outer, hidden), targets)

    def _pool(self, outer: list[jax.Array], rows: jax.Array) -> jax.Array:
        """The model's last hidden states of rows [R, E], in float32 and of length 1."""
        hidden = self.model.merge(self.model.outer, outer).norm(rows).astype(jnp.float32)
        return hidden / jnp.linalg.norm(hidden, axis=-1, keepdims=True)

    def _logits(self, outer: list[jax.Array], x: jax.Array) -> jax.Array:
        model = self.model.merge(self.model.outer, outer)
        return model.logits(model.norm(x))[:, : self.vocab]

    def compile_all(
        self, buckets: tuple[Bucket, ...], state: StepState, progress: bool, stop: Event
    ) -> tuple[dict[Bucket, Step], CopyBlocks]:
        """Compiles every bucket's programs, and the one that copies blocks.

        Args:
            state: shapes are enough.
            stop: as of compile_jobs().
        """
        jobs: dict[Hashable, CompileJob] = {}
        for bucket in buckets:
            jobs |= self.jobs(bucket, state)
        for k, v in state.pages:
            jobs.setdefault(("copy", k.shape, v.shape), CompileJob(_copy, (k, v, _PAIRS), (0, 1)))
        lower = trace if self.traced is None else self.traced.lower
        done = compile_jobs(jobs, progress, stop, lower)
        copy = CopyBlocks([done["copy", k.shape, v.shape] for k, v in state.pages])
        steps = {
            bucket: Step(
                self.model.groups,
                done["embed", bucket],
                [done["layers", bucket.plain, group.kind] for group in self.model.groups],
                done["draw", bucket.drawn, bucket.guesses],
                done.get(("take", bucket.tokens)),
                done["logprobs"],
                None if bucket.decode else done["pool", bucket.drawn],
                done.get(("repeat", bucket, self.decode_steps)),
            )
            for bucket in buckets
        }
        return steps, copy

    def jobs(self, bucket: Bucket, state: StepState) -> dict[Hashable, CompileJob]:
        """The jobs of a bucket's programs. A key begins with the program's name; equal keys of two
        buckets are the same program."""
        outer, groups = self.model.split_params(self.model.shapes)
        ints = jax.ShapeDtypeStruct((size(int_shapes(bucket)),), jnp.int32)
        embed, last, tables = self._embed(bucket), state.last_tokens, state.tables
        inputs = (outer, last, state.block_tables, ints)
        x, batch, draws, _ = jax.eval_shape(embed, *inputs)
        rows, piece = (
            jax.ShapeDtypeStruct((n, x.shape[1]), x.dtype) for n in (bucket.drawn, PIECE)
        )
        targets = jax.ShapeDtypeStruct((PIECE,), jnp.int32)
        jobs: dict[Hashable, CompileJob] = {
            ("embed", bucket): CompileJob(embed, inputs, (2,)),
            ("draw", bucket.drawn, bucket.guesses): CompileJob(
                self._draw, (outer, last, tables, rows, draws), (1, 2)
            ),
            "logprobs": CompileJob(self._prompt_logprobs, (outer, piece, targets)),
        }
        if not bucket.decode:
            jobs["take", bucket.tokens] = CompileJob(
                self._take, (x, jax.ShapeDtypeStruct((), jnp.int32))
            )
            jobs["pool", bucket.drawn] = CompileJob(self._pool, (outer, rows))
        elif self.decode_steps > 1 and not bucket.guesses:
            job = CompileJob(self._repeat(bucket), (SplitParams(outer, groups), state, ints), (1,))
            jobs["repeat", bucket, self.decode_steps] = job
        for group, params in zip(self.model.groups, groups, strict=True):
            run = self._run_group(self.model.groups[group.kind], bucket)
            job = CompileJob(run, (params, group.select(state.pages), x, batch), (1, 2))
            jobs.setdefault(("layers", bucket.plain, group.kind), job)
        return jobs


def _copy(k_pages: jax.Array, v_pages: jax.Array, pairs: jax.Array) -> tuple[jax.Array, jax.Array]:
    return copy_blocks(k_pages, v_pages, pairs[0], pairs[1])
