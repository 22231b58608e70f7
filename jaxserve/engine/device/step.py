"""The step, from a batch to sampled tokens: a few kinds of jitted programs, called in turn.

The embedding and a segment of layers (see segments) exist once a bucket, the head with its sampler
once a number of rows. All are compiled before the engine is ready.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Event
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.export import register_namedtuple_serialization
from jax.stages import Compiled

from jaxserve.engine.device.buckets import Bucket
from jaxserve.engine.device.compilation.compile_jobs import Job, compile_together, trace
from jaxserve.engine.device.compilation.traced_programs import TracedPrograms
from jaxserve.engine.device.layer_groups import LayerGroup, ModelParts, SplitParams
from jaxserve.engine.device.paged_cache import Pages, StepCaches
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
from jaxserve.sampling.logit_processors import SamplingTables, count
from jaxserve.sampling.logprobs import Logprobs, logprobs_of, token_logprobs
from jaxserve.sampling.row_settings import unpack
from jaxserve.sampling.sampler import sample
from pallas_kernels import copy_blocks

PIECE = 128  # prompt tokens whose logits are in memory at once
COPIES = 16  # blocks that one call copies
_PAIRS = jax.ShapeDtypeStruct((2, COPIES), jnp.int32)


class StepState(NamedTuple):
    """Device state that a step takes over and gives back.

    Args:
        pages: the KV pool.
        last_tokens: [N+1] int32, each slot's last sampled token.
        block_tables: [G, N+1, W] int32, each slot's, one a cache group.
        tables: each slot's sampling tables.
    """

    pages: Pages
    last_tokens: jax.Array
    block_tables: jax.Array
    tables: SamplingTables


class Embedded(NamedTuple):
    """What a step begins with.

    Args:
        x: [T, E], the embedded tokens.
        batch: what the layers read beside it.
        draws: [R, DRAW_COLUMNS], what the sampler reads.
        block_tables: see StepState, with what is new in them.
    """

    x: jax.Array
    batch: StepBatch
    draws: jax.Array
    block_tables: jax.Array


class StepOutput(NamedTuple):
    """What a step tells the host.

    Args:
        ids: [R] int32, sampled tokens; -1 where the logits weren't finite.
        logprobs: of the sampled tokens; zeros if no row asks for them.

    Of several steps in one dispatch each array has one entry a step.
    """

    ids: jax.Array
    logprobs: Logprobs[jax.Array]


for _kind in (
    *(StepBatch, Embedded, StepOutput, SamplingTables, Logprobs),
    *(StepState, SplitParams),
):
    register_namedtuple_serialization(_kind, serialized_name=f"jaxserve.{_kind.__name__}")


@dataclass(frozen=True, slots=True)
class Step:
    """One bucket's compiled programs.

    Args:
        segments: of the model.
        run: one an entry of `segments`; equal segments have the same program.
        take: PIECE hidden states from a row on; None for pure decodes.
        logprobs: of the prompt tokens that follow them.
        pool: embeddings of the rows that are drawn from; None in a pure decode.
        repeat: several steps of the same rows; None but in pure decodes, if it is asked for.
    """

    segments: tuple[LayerGroup, ...]
    embed: Compiled
    run: list[Compiled]
    draw: Compiled
    take: Compiled | None
    logprobs: Compiled
    pool: Compiled | None
    repeat: Compiled | None = None

    def layers(
        self, params: SplitParams, state: StepState, *packs: np.ndarray
    ) -> tuple[StepState, jax.Array, jax.Array, jax.Array]:
        """Starts the step: the next state, the last layer's x [T, E], its rows [R, E] that are
        drawn from, and how [R, DRAW_COLUMNS].

        Args:
            packs: the step's buffer (see StepInts). If its entries are more than one holds: such
                with the others come first, and are read for those alone.
        """
        tables = state.block_tables
        for ints in packs:
            x, batch, draws, tables = self.embed(params.ends, state.last_tokens, tables, ints)
        pages = list(state.pages)
        for segment, run, own in zip(self.segments, self.run, params.segments, strict=True):
            x, rows, new = run(own, segment.of(pages), x, batch)
            for i, written in zip(segment.buffers, new, strict=True):
                pages[i] = written
        return state._replace(pages=pages, block_tables=tables), x, rows, draws

    def sample(
        self, params: SplitParams, state: StepState, rows: jax.Array, draws: jax.Array
    ) -> tuple[StepState, StepOutput]:
        """Ends the step: draws from the rows [R, E]; the next state, and the output."""
        last_tokens, tables, output = self.draw(
            params.ends, state.last_tokens, state.tables, rows, draws
        )
        return state._replace(last_tokens=last_tokens, tables=tables), output

    def several(
        self, params: SplitParams, state: StepState, *packs: np.ndarray
    ) -> tuple[StepState, StepOutput]:
        """Decodes the same rows several times; the next state, and the outputs.

        Args:
            packs: the first step's, as layers() takes them, with what is new in the block tables
                up to the last step.
        """
        assert self.repeat is not None
        tables = state.block_tables
        for ints in packs[:-1]:
            *_, tables = self.embed(params.ends, state.last_tokens, tables, ints)
        state = state._replace(block_tables=tables)
        ended: tuple[StepState, StepOutput] = self.repeat(params, state, packs[-1])
        return ended

    def prompt_logprobs(
        self, params: SplitParams, x: jax.Array, first: int, targets: np.ndarray
    ) -> Logprobs[jax.Array]:
        """Logprobs of the tokens `targets` [PIECE] that follow x's rows from `first` on."""
        assert self.take is not None
        piece = self.take(x, np.int32(first))
        logprobs: Logprobs[jax.Array] = self.logprobs(params.ends, piece, targets)
        return logprobs


@dataclass(frozen=True, slots=True)
class CopyBlocks:
    """The compiled programs that copy blocks, one a buffer of the pool."""

    programs: list[Compiled]

    def __call__(self, pages: Pages, copies: tuple[tuple[int, int], ...]) -> Pages:
        """The pages with each source block copied to its destination; `pages` are donated."""
        for first in range(0, len(copies), COPIES):
            pairs = np.full((2, COPIES), [[0], [-1]], np.int32)  # -1 drops the copy
            some = copies[first : first + COPIES]
            pairs[:, : len(some)] = np.array(some, np.int32).T
            pages = [
                copy(*buffer, pairs) for buffer, copy in zip(pages, self.programs, strict=True)
            ]
        return pages


def _copy(k_pages: jax.Array, v_pages: jax.Array, pairs: jax.Array) -> tuple[jax.Array, jax.Array]:
    return copy_blocks(k_pages, v_pages, pairs[0], pairs[1])


@dataclass(frozen=True, slots=True)
class StepPrograms:
    """What every bucket's programs share, and how to compile them.

    Args:
        block_size: tokens P of a block.
        vocab: tokens that may be drawn; the model's head may be padded beyond it.
        one_by_one: see sampling.sampler.sample.
        decode_steps: see EngineConfig.
        traced: where traced programs are kept; None traces them anew.
    """

    parts: ModelParts
    block_size: int
    vocab: int
    one_by_one: bool
    decode_steps: int = 1
    traced: TracedPrograms | None = None

    def _embed(self, bucket: Bucket) -> Callable[..., Embedded]:
        def embed(
            ends: list[jax.Array], last_tokens: jax.Array, tables: jax.Array, ints: jax.Array
        ) -> Embedded:
            fields = StepInts(*split(ints, int_shapes(bucket)))
            known = fields.tokens >= 0
            last = last_tokens[jnp.where(known, 0, -fields.tokens - 1)]
            model = self.parts.merge(self.parts.ends, ends)
            x = model.embedded(jnp.where(known, fields.tokens, last))
            slots, groups, indices, blocks = fields.entries
            tables = tables.at[groups, slots, indices].set(blocks, mode="drop")
            used = jnp.arange(len(x)) < fields.query_starts[-1]
            x = jnp.where(used[:, None], x, 0)  # a CPU multiplies no rows of zeros
            return Embedded(x, place(fields, tables, self.block_size), fields.draws, tables)

        return embed

    def _segment(
        self, segment: LayerGroup, bucket: Bucket
    ) -> Callable[..., tuple[jax.Array, jax.Array, Pages]]:
        def run(
            params: list[jax.Array], pages: Pages, x: jax.Array, batch: StepBatch
        ) -> tuple[jax.Array, jax.Array, Pages]:
            """x [T, E], the rows to draw from [R, E], and the pages written."""
            longest = 1 if bucket.decode else bucket.tokens
            caches = StepCaches(pages, segment.places, batch, longest)
            model = self.parts.merge(segment.leaves, params)
            x = model.run(segment.layers, x, batch.positions, caches)
            ends = batch.query_starts[1:]
            real = ends > batch.query_starts[:-1]
            rows = jnp.where(real[:, None], x[jnp.maximum(ends - 1, 0)], 0)
            rows = jnp.pad(rows, ((0, bucket.drawn - bucket.rows), (0, 0)))
            return x, rows, caches.pages

        return run

    def _draw(
        self,
        ends: list[jax.Array],
        last_tokens: jax.Array,
        tables: SamplingTables,
        rows: jax.Array,
        draws: jax.Array,
    ) -> tuple[jax.Array, SamplingTables, StepOutput]:
        own = DrawRows.split(draws)
        floats = jax.lax.bitcast_convert_type(own.floats, jnp.float32)
        asked = unpack(own.ints, floats, own.slots, own.output_positions)
        logits = self._logits(ends, rows)
        ids = sample(logits, asked, tables, self.one_by_one)
        logprobs = token_logprobs(
            logits, jnp.maximum(ids, 0), asked.num_logprobs >= 0, self.one_by_one
        )
        output = StepOutput(ids, logprobs)
        kept = (own.keep > 0) & (ids >= 0)
        last_tokens = last_tokens.at[own.slots].set(jnp.where(kept, ids, last_tokens[own.slots]))
        tables = tables._replace(counts=count(tables.counts, own.slots, ids, kept))
        return last_tokens, tables, output

    def _repeat(self, bucket: Bucket) -> Callable[..., tuple[StepState, StepOutput]]:
        """A decode's programs, decode_steps times one after the other."""
        segments, growth = self.parts.segments, advance(bucket)
        run = [self._segment(segments[segment.kind], bucket) for segment in segments]
        traced: Any = Step  # of functions in place of programs
        step = traced(segments, self._embed(bucket), run, self._draw, None, None, None)

        def repeat(
            params: SplitParams, state: StepState, ints: jax.Array
        ) -> tuple[StepState, StepOutput]:
            def once(state: StepState, nth: jax.Array) -> tuple[StepState, StepOutput]:
                state, _, rows, draws = step.layers(params, state, ints + nth * growth)
                return step.sample(params, state, rows, draws)

            return jax.lax.scan(once, state, jnp.arange(self.decode_steps))

        return repeat

    def _take(self, hidden: jax.Array, first: jax.Array) -> jax.Array:
        padded = jnp.pad(hidden, ((0, PIECE), (0, 0)))
        return jax.lax.dynamic_slice_in_dim(padded, first, PIECE)

    def _prompt_logprobs(
        self, ends: list[jax.Array], hidden: jax.Array, targets: jax.Array
    ) -> Logprobs[jax.Array]:
        return logprobs_of(self._logits(ends, hidden), targets)

    def _pool(self, ends: list[jax.Array], rows: jax.Array) -> jax.Array:
        """The model's last hidden states of rows [R, E], in float32 and of length 1."""
        hidden = self.parts.merge(self.parts.ends, ends).norm(rows).astype(jnp.float32)
        return hidden / jnp.linalg.norm(hidden, axis=-1, keepdims=True)

    def _logits(self, ends: list[jax.Array], x: jax.Array) -> jax.Array:
        model = self.parts.merge(self.parts.ends, ends)
        return model.logits(model.norm(x))[:, : self.vocab]

    def compile_all(
        self, buckets: tuple[Bucket, ...], state: StepState, progress: bool, given_up: Event
    ) -> tuple[dict[Bucket, Step], CopyBlocks]:
        """Compiles every bucket's programs, and the one that copies blocks.

        Args:
            state: shapes are enough.
            given_up: as compile_together().
        """
        jobs: dict[Hashable, Job] = {}
        for bucket in buckets:
            jobs |= self.jobs(bucket, state)
        for k, v in state.pages:
            jobs.setdefault(("copy", k.shape, v.shape), Job(_copy, (k, v, _PAIRS), (0, 1)))
        lower = trace if self.traced is None else self.traced.lower
        done = compile_together(jobs, progress, given_up, lower)
        copy = CopyBlocks([done["copy", k.shape, v.shape] for k, v in state.pages])
        steps = {
            bucket: Step(
                self.parts.segments,
                done["embed", bucket],
                [done["segment", bucket, segment.kind] for segment in self.parts.segments],
                done["draw", bucket.drawn],
                done.get(("take", bucket.tokens)),
                done["logprobs"],
                None if bucket.decode else done["pool", bucket.drawn],
                done.get(("repeat", bucket, self.decode_steps)),
            )
            for bucket in buckets
        }
        return steps, copy

    def jobs(self, bucket: Bucket, state: StepState) -> dict[Hashable, Job]:
        """A bucket's programs, under keys that begin with their names; some are other buckets'
        too."""
        ends, segments = self.parts.distribute(self.parts.shapes)
        ints = jax.ShapeDtypeStruct((size(int_shapes(bucket)),), jnp.int32)
        embed, last, tables = self._embed(bucket), state.last_tokens, state.tables
        inputs = (ends, last, state.block_tables, ints)
        x, batch, draws, _ = jax.eval_shape(embed, *inputs)
        rows, piece = (
            jax.ShapeDtypeStruct((n, x.shape[1]), x.dtype) for n in (bucket.drawn, PIECE)
        )
        targets = jax.ShapeDtypeStruct((PIECE,), jnp.int32)
        jobs: dict[Hashable, Job] = {
            ("embed", bucket): Job(embed, inputs, (2,)),
            ("draw", bucket.drawn): Job(self._draw, (ends, last, tables, rows, draws), (1, 2)),
            "logprobs": Job(self._prompt_logprobs, (ends, piece, targets)),
        }
        if not bucket.decode:
            jobs["take", bucket.tokens] = Job(self._take, (x, jax.ShapeDtypeStruct((), jnp.int32)))
            jobs["pool", bucket.drawn] = Job(self._pool, (ends, rows))
        elif self.decode_steps > 1:
            job = Job(self._repeat(bucket), (SplitParams(ends, segments), state, ints), (1,))
            jobs["repeat", bucket, self.decode_steps] = job
        for segment, params in zip(self.parts.segments, segments, strict=True):
            run = self._segment(self.parts.segments[segment.kind], bucket)
            job = Job(run, (params, segment.of(state.pages), x, batch), (1, 2))
            jobs.setdefault(("segment", bucket, segment.kind), job)
        return jobs
