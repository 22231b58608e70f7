"""The comparison as one figure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

SERIES = {
    "ours": ("jaxserve", "#2f6db3"),
    "torch_float32": ("PyTorch, eager", "#eeb68f"),
    "torch_float32_compiled": ("PyTorch, decode steps compiled", "#d9702b"),
    "torch_bfloat16": ("PyTorch bfloat16, eager", "#8a8a8a"),
}


def draw(figures: dict[str, Any], file: Path) -> None:
    """Writes a PNG: step times by shape, the trace's rate, seconds to be ready, memory."""
    series = [s for s in SERIES if f"trace_{s}_s" in figures]
    plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False})
    figure = plt.figure(figsize=(11, 7), layout="constrained")
    top, bottom = figure.subfigures(2, 1)
    cases = [n.removesuffix("_ours_ms") for n in figures if n.endswith("_ours_ms")]
    decode = [n for n in cases if n.startswith("decode")]
    axes = top.subplots()
    _bars(axes, figures, series, {_title(n): f"{n}_{{}}_ms" for n in decode})
    axes.set(title="Decode steps: rows x context", ylabel="ms a step (log)", yscale="log")
    axes.legend(frameon=False, ncols=len(series), loc="upper left")
    axes.margins(x=0.01, y=0.18)
    prompts, rate, start, memory = bottom.subplots(1, 4, width_ratios=[5, 1, 1, 1])
    rest = {_title(n): f"{n}_{{}}_ms" for n in cases if n not in decode}
    _bars(prompts, figures, series, rest, scale=1 / 1000)
    prompts.set(title="Steps with a prompt, or decodes + a prompt (tokens)", ylabel="s a step")
    prompts.margins(x=0.01)
    _bars(rate, figures, series, {"": "trace_{}_tok_s"})
    rate.set(title="ShareGPT-like", ylabel="output tokens / s of steps")
    _bars(start, figures, series, {"": "{}_start_s"})
    start.set(title="Load and compile", ylabel="s")
    _bars(memory, figures, series, {"": "{}_peak_mib"}, scale=1 / 1024)
    memory.set(title="Peak memory", ylabel="GiB")
    title = f"One scheduler, two runners: {figures['model']}, {figures['machine']}"
    figure.suptitle(title, fontsize=11, fontweight="bold")
    file.parent.mkdir(parents=True, exist_ok=True)
    plt.savefig(file, dpi=110)


def _title(case: str) -> str:
    kind, *parts = case.split("_")
    return {"decode": " x ", "mixed": " + ", "prefill": ""}[kind].join(p[1:] for p in parts)


def _bars(
    axes: Axes, figures: dict[str, Any], series: list[str], groups: dict[str, str], scale: float = 1
) -> None:
    """Draws a group of bars for each key; {} in a figure's name stands for the series."""
    width = 0.86 / len(series)
    for n, name in enumerate(series):
        label, color = SERIES[name]
        heights = [figures[key.format(name)] * scale for key in groups.values()]
        places = [i + (n - (len(series) - 1) / 2) * width for i in range(len(groups))]
        bars = axes.bar(places, heights, width * 0.94, label=label, color=color)
        texts = [f"{h:.0f}" if h >= 10 else f"{h:.1f}" if h >= 1 else f"{h:.2f}" for h in heights]
        axes.bar_label(bars, texts, fontsize=7, padding=1, color="#444444")
    axes.set_xticks(range(len(groups)), groups)
