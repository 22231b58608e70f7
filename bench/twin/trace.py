"""Packed steps without padding, as both runners replay them.

Needs only NumPy, so that an interpreter with torch but without our packages can use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np


def peak_resident_mib() -> float:
    """The peak resident memory of this process. (getrusage starts with that of its parent.)"""
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
        slots: [S], where each row's sampled token is kept as the last one.
        keep: [S], 1 where the sampled token is kept.
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
    """Keys and values [tokens, K, D] float32 that fill both runners' pools in every layer before a
    case starts, so that no contexts need to be computed."""
    rng = np.random.default_rng(0)
    k, v = rng.standard_normal((2, tokens, kv_heads, head_dim), np.float32)
    return k, v
