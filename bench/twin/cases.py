"""The shapes of step that are compared, recorded from the scheduler's plans."""

from __future__ import annotations

from dataclasses import dataclass

from bench.twin.record import Recorded, Recorder, sharegpt_like


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is measured.

    Args:
        rows, contexts: of the decode steps; every pair of them is a case.
        steps: decode steps of a case.
        chunks: tokens of a prompt computed in one step.
        mixed: pairs of decodes and tokens of a prompt beside them.
        mixed_context: of those decodes.
        requests, scale: of the trace: how many, and what ShareGPT-like lengths are multiplied by.
        passes: of each case.
    """

    rows: tuple[int, ...] = (1, 8, 32)
    contexts: tuple[int, ...] = (128, 512, 1024)
    steps: int = 4
    chunks: tuple[int, ...] = (128, 512, 1024)
    mixed: tuple[tuple[int, int], ...] = ((8, 120), (31, 481), (31, 512))
    mixed_context: int = 512
    requests: int = 16
    scale: float = 0.2
    passes: int = 2


QUICK = Sizes((1, 8), (128,), 3, (128,), ((7, 121),), 128, 4, 0.1)


def record(recorder: Recorder, sizes: Sizes) -> dict[str, list[Recorded]]:
    """Every case by its name; the trace comes last."""
    cases = {
        f"decode_b{rows}_c{context}": recorder.decode(rows, context, sizes.steps)
        for rows in sizes.rows
        for context in sizes.contexts
    }
    cases |= {f"prefill_t{tokens}": recorder.prompt(tokens) for tokens in sizes.chunks}
    cases |= {
        f"mixed_d{decodes}_t{tokens}": recorder.prompt(tokens, decodes, sizes.mixed_context)
        for decodes, tokens in sizes.mixed
    }
    return cases | {"trace": recorder.trace(sharegpt_like(sizes.requests, sizes.scale))}
