"""Computes figures from outcomes, with vLLM's definitions, and prints them.

TTFT: from sending a request to the first piece of its answer. TPOT: (latency - TTFT) /
(output tokens - 1), of answers of two tokens and more. ITL: from one piece to the next, over all
answers. E2E: from sending to the last piece. Throughputs are over the whole run, of requests
without an error. A request is good if it meets every limit; an answer of one token meets any TPOT.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from jaxserve.bench.timed_request import Outcome

Figure = str | float | int | bool | None
Figures = dict[str, Figure]

LATENCIES = {
    "ttft": "time to first token",
    "tpot": "time per output token after it",
    "itl": "between pieces",
    "e2el": "end to end",
}
STATISTICS = ("mean", "median", "p90", "p99")
# Of fewer requests, a percentile is the figure of one or two of them.
MIN_FOR_PERCENTILES = 30


def percentile(values: Sequence[float], percent: float) -> float:
    """Percentile, with linear interpolation between the closest ranks as in NumPy."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * percent / 100
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def spread(name: str, seconds: Sequence[float], requests: int) -> Figures:
    """Mean, median, p90 and p99 of seconds, in ms; None if there are none.

    Args:
        requests: that the seconds are of. p90 and p99 of fewer than MIN_FOR_PERCENTILES are None.
    """
    figures: Figures = {f"{statistic}_{name}_ms": None for statistic in STATISTICS}
    if not seconds:
        return figures
    found = [statistics.fmean(seconds), percentile(seconds, 50)]
    if requests >= MIN_FOR_PERCENTILES:
        found += [percentile(seconds, percent) for percent in (90, 99)]
    return figures | {
        key: round(value * 1000, 3) for key, value in zip(figures, found, strict=False)
    }


def summarise(
    outcomes: Sequence[Outcome], duration_s: float, limits_ms: Mapping[str, float]
) -> Figures:
    """The figures of a run.

    Args:
        limits_ms: of a good request, by metric (ttft, tpot, e2el); if empty, no goodput is given.
    """
    done = [outcome for outcome in outcomes if outcome.error is None]
    errors = Counter(outcome.error for outcome in outcomes if outcome.error is not None)
    prompt = sum(outcome.prompt_tokens or 0 for outcome in done)
    output = sum(outcome.output_tokens for outcome in done)
    cached = [o.cached_tokens for o in done if o.cached_tokens is not None]
    figures: Figures = {
        "duration_s": round(duration_s, 3),
        "completed": len(done),
        "failed": len(outcomes) - len(done),
        **{f"failed_{error}": count for error, count in sorted(errors.items())},
        "prompt_tokens": prompt,
        "output_tokens": output,
        "cached_prompt_share": round(sum(cached) / prompt, 4) if cached and prompt else None,
        "requests_per_s": round(len(done) / duration_s, 4),
        "output_tokens_per_s": round(output / duration_s, 3),
        "total_tokens_per_s": round((prompt + output) / duration_s, 3),
    }
    if limits_ms:
        good = sum(_is_good(outcome, limits_ms) for outcome in done)
        figures["good"] = good
        figures["goodput_requests_per_s"] = round(good / duration_s, 4)
    for name, seconds in {
        "ttft": [outcome.ttft_s for outcome in done],
        "tpot": [o.tpot_s for o in done if o.tpot_s is not None],
        "itl": [gap for outcome in done for gap in outcome.itls_s],
        "e2el": [outcome.latency_s for outcome in done],
    }.items():
        figures |= spread(name, seconds, len(done))
    return figures


def _is_good(outcome: Outcome, limits_ms: Mapping[str, float]) -> bool:
    seconds = {
        "ttft": outcome.ttft_s,
        "tpot": outcome.tpot_s or 0.0,
        "e2el": outcome.latency_s,
    }
    return all(seconds[name] * 1000 <= limit for name, limit in limits_ms.items())


def render(figures: Figures) -> str:
    """The figures as text: one a line, then a table of latencies."""
    in_table = {f"{s}_{name}_ms" for s in STATISTICS for name in LATENCIES}
    lines = [f"{key:28} {_show(value)}" for key, value in figures.items() if key not in in_table]
    rows = [name for name in LATENCIES if f"mean_{name}_ms" in figures]
    if rows:
        lines += ["", f"{'ms':38}" + "".join(f"{statistic:>12}" for statistic in STATISTICS)]
    for name in rows:
        values = (_show(figures[f"{statistic}_{name}_ms"]) for statistic in STATISTICS)
        title = f"{name.upper()}, {LATENCIES[name]}"
        lines.append(f"{title:38}" + "".join(f"{value:>12}" for value in values))
    return "\n".join(lines)


def json_line(figures: Figures) -> str:
    """The figures as one line of JSON; infinity, which JSON doesn't have, becomes null."""
    finite = {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in figures.items()
    }
    return json.dumps(finite, allow_nan=False)


def _show(value: Figure) -> str:
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
