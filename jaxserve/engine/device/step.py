"""Step: the compiled programs of one bucket, from a batch to sampled tokens, and what they take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from jax.stages import Compiled

from jaxserve.engine.device.layer_groups import LayerGroup, SplitParams
from jaxserve.engine.device.paged_cache import Pages
from jaxserve.engine.device.step_batch import StepBatch
from jaxserve.sampling.logit_processors import SamplingTables
from jaxserve.sampling.logprobs import Logprobs

PIECE = 128  # prompt tokens whose logits are in memory at once
COPIES = 16  # blocks that one call copies


class StepState(NamedTuple):
    """Device state that each step takes over and returns changed.

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


class EmbedOutput(NamedTuple):
    """What the embedding gives to the layers and to the draw.

    Args:
        x: [T, E], the embedded tokens.
        batch: the step's positions and places, for the layers.
        draws: [R, DRAW_COLUMNS], the sampler's input.
        block_tables: see StepState, with the step's new entries written.
    """

    x: jax.Array
    batch: StepBatch
    draws: jax.Array
    block_tables: jax.Array


class LayersOutput(NamedTuple):
    """What the layers give to the draw.

    Args:
        hidden: [T, E], the last layer's output.
        drawn: [R, E], the rows of it that tokens are drawn from.
        draws: [R, DRAW_COLUMNS], the sampler's input (see DrawRows).
    """

    hidden: jax.Array
    drawn: jax.Array
    draws: jax.Array


class StepOutput(NamedTuple):
    """What a step computes for the host.

    Args:
        ids: [R] int32, sampled tokens; -1 where the logits weren't finite.
        logprobs: of the sampled tokens; zeros if no row asks for them.

    Of several steps in one dispatch each array has one entry a step.
    """

    ids: jax.Array
    logprobs: Logprobs[jax.Array]


@dataclass(frozen=True, slots=True)
class Step:
    """One bucket's compiled programs.

    Args:
        groups: the model's layer groups.
        run: one an entry of `groups`; groups that are alike have the same program.
        take: PIECE hidden states from a row on; None for pure decodes.
        logprobs: of the prompt tokens that follow these hidden states.
        pool: embeddings of the rows that are drawn from; None for pure decodes.
        repeat: several steps of the same rows; only for pure decodes, if decode_steps asks for it.
    """

    groups: tuple[LayerGroup, ...]
    embed: Compiled
    run: list[Compiled]
    draw: Compiled
    take: Compiled | None
    logprobs: Compiled
    pool: Compiled | None
    repeat: Compiled | None = None

    def layers(
        self, params: SplitParams, state: StepState, *uploads: np.ndarray
    ) -> tuple[StepState, LayersOutput]:
        """Computes embedding and layers; also returns the next state.

        Args:
            uploads: the step's buffer (see StepInts). If it has more new entries of block tables
                than one buffer holds: several, of which all but the last are read for their
                entries alone.
        """
        tables = state.block_tables
        for ints in uploads:
            x, batch, draws, tables = self.embed(params.outer, state.last_tokens, tables, ints)
        pages = list(state.pages)
        for group, run, own in zip(self.groups, self.run, params.groups, strict=True):
            x, drawn, new = run(own, group.select(pages), x, batch)
            for i, written in zip(group.buffers, new, strict=True):
                pages[i] = written
        state = state._replace(pages=pages, block_tables=tables)
        return state, LayersOutput(x, drawn, draws)

    def sample(
        self, params: SplitParams, state: StepState, layers: LayersOutput
    ) -> tuple[StepState, StepOutput]:
        """Draws the tokens, after layers(); also returns the next state."""
        last_tokens, tables, output = self.draw(
            params.head, state.last_tokens, state.tables, layers.drawn, layers.draws
        )
        return state._replace(last_tokens=last_tokens, tables=tables), output

    def several(
        self, params: SplitParams, state: StepState, *uploads: np.ndarray
    ) -> tuple[StepState, StepOutput]:
        """Decodes the same rows several times; the next state, and the outputs.

        Args:
            uploads: the first step's, as layers() takes them, with the new entries of the block
                tables of all steps.
        """
        assert self.repeat is not None
        tables = state.block_tables
        for ints in uploads[:-1]:
            *_, tables = self.embed(params.outer, state.last_tokens, tables, ints)
        state = state._replace(block_tables=tables)
        ended: tuple[StepState, StepOutput] = self.repeat(params, state, uploads[-1])
        return ended

    def prompt_logprobs(
        self,
        params: SplitParams,
        hidden: jax.Array,
        first: int,
        targets: np.ndarray,
        adapters: np.ndarray,
    ) -> Logprobs[jax.Array]:
        """Logprobs of the tokens `targets` [PIECE], which follow the rows of the hidden states
        [T, E] from `first` on.

        Args:
            adapters: [PIECE] int32, the adapter slots of these rows.
        """
        assert self.take is not None
        piece = self.take(hidden, np.int32(first))
        logprobs: Logprobs[jax.Array] = self.logprobs(params.head, piece, targets, adapters)
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
