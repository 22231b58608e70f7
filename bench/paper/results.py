"""Results of all parts, in one JSON file from which the figures are drawn."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from bench.paper.clock import Point, rate_at

Results = dict[str, Any]
KNEE = 4.0  # "equal latency" is so many times that of the paged system at the lowest rate


def load(file: Path) -> Results:
    return json.loads(file.read_text()) if file.exists() else {}


def save(results: Results, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(_rounded(results)) + "\n")


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.4g}") if math.isfinite(value) else None
    return value


def curve(points: list[Point]) -> list[list[float]]:
    """(rate, normalised latency, sequences that run) by point."""
    return [[p.rate, p.outcome.latency, p.outcome.batched] for p in points]


def knees(curves: dict[str, list[Point]], paged: str) -> dict[str, float]:
    """Each system's rate at KNEE times the paged system's latency at its lowest rate; NaN if it
    wasn't reached."""
    limit = KNEE * curves[paged][0].outcome.latency
    return {name: rate_at(points, limit) for name, points in curves.items()}


def flat(results: Results) -> dict[str, float]:
    """The figures to print, units in their names."""
    figures: dict[str, float] = {}
    for cost in ("roofline", "measured"):
        for trace, rates in results.get(f"{cost}_knees", {}).items():
            for system, rate in rates.items():
                key = f"{cost}_{trace}_{slug(system)}"
                if rate is None or rates["paged"] is None:
                    continue
                figures[f"{key}_rate_at_knee_req_s"] = rate
                ratio = rates["paged"] / rate
                if system != "paged":
                    figures[f"{key}_paged_rate_ratio"] = ratio
    for trace, systems in results.get("memory", {}).items():
        for system, parts in systems.items():
            for part, share in parts.items():
                unit = "" if part == "batched_sequences" else "_percent"
                value = share if part == "batched_sequences" else 100 * share
                figures[f"{trace}_{slug(system)}_{part}{unit}"] = value
    for trace, sizes in results.get("blocks", {}).items():
        for size, (latency, wasted) in sizes.items():
            figures[f"{trace}_block{size}_latency_ms_token"] = 1000 * latency
            figures[f"{trace}_block{size}_wasted_percent"] = 100 * wasted
    for way in ("parallel", "beams"):
        for trace, widths in results.get(way, {}).items():
            for width, share in widths.items():
                figures[f"{way}_{trace}_{width}_saving_percent"] = 100 * share
    figures |= results.get("fit", {})
    for run in results.get("real", []):
        key = f"real_{slug(run['system'])}_rate{run['rate']:g}"
        figures |= {
            f"{key}_latency_ms_token": 1000 * run["latency"],
            f"{key}_simulated_over_real_latency_ratio": run["simulated_latency"] / run["latency"],
            f"{key}_tok_s": run["tokens_s"],
            f"{key}_simulated_over_real_tok_s_ratio": run["simulated_tokens_s"] / run["tokens_s"],
        }
    return {name: float(f"{v:.4g}") for name, v in figures.items() if math.isfinite(v)}


def slug(system: str) -> str:
    return "".join(c for c in system.lower().replace(" ", "_") if c.isalnum() or c == "_")
