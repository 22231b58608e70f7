"""Steps as both runners replay them: what the scheduler's plans become once packed, no padding.

Needs NumPy alone, so that an interpreter with torch but none of ours reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np


def peak_resident_mib() -> float:
    """Most memory that this process has had. (getrusage's figure begins at its parent's.)"""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 2**10


class PackedStep(NamedTuple):
    """One step, all int32. Rows of one token come first.

    Args:
        tokens: [T]; a negative value -1-slot means the slot's last sampled token.
        positions: [T].
        write_slots: [T], where K and V of each token go: block * P + offset.
        query_starts: [S+1], first token of each row.
        context_lens: [S], tokens of each row's sequence up to and with this step.
        block_tables: [S, W].
        slots: [S], whose last token a row's sampled one becomes.
        keep: [S], 1 where it does.
        ids: [S], what ours sampled.
    """

    tokens: np.ndarray
    positions: np.ndarray
    write_slots: np.ndarray
    query_starts: np.ndarray
    context_lens: np.ndarray
    block_tables: np.ndarray
    slots: np.ndarray
    keep: np.ndarray
    ids: np.ndarray

    @property
    def decode(self) -> bool:
        """Whether every row computes one token."""
        return len(self.tokens) == len(self.context_lens)


Cases = Mapping[str, Sequence[PackedStep]]


def save(file: Path, cases: Cases) -> None:
    """Writes cases, each a list of steps, into one .npz file."""
    arrays = {
        f"{case}/{i}/{name}": array
        for case, steps in cases.items()
        for i, step in enumerate(steps)
        for name, array in step._asdict().items()
    }
    np.savez(file, **arrays)  # type: ignore[arg-type]


def load(file: Path) -> dict[str, list[PackedStep]]:
    """The cases that save() wrote, in their order."""
    cases: dict[str, list[dict[str, np.ndarray]]] = {}
    with np.load(file) as arrays:
        for key in arrays.files:
            case, i, name = key.split("/")
            steps = cases.setdefault(case, [])
            if int(i) == len(steps):
                steps.append({})
            steps[int(i)][name] = arrays[key]
    return {case: [PackedStep(**step) for step in steps] for case, steps in cases.items()}


def random_pages(tokens: int, kv_heads: int, head_dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Keys and values [tokens, K, D] float32 that both runners' pools hold, in every layer, before
    a case begins: contexts that nobody has to compute."""
    rng = np.random.default_rng(0)
    k, v = rng.standard_normal((2, tokens, kv_heads, head_dim), np.float32)
    return k, v
