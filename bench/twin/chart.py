"""The comparison as one picture."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

SERIES = {
    "ours": ("jaxserve", "#2f6db3"),
    "torch_float32": ("PyTorch, compiled", "#d9702b"),
    "torch_float32_eager": ("PyTorch, eager", "#eeb68f"),
    "torch_bfloat16": ("PyTorch bfloat16", "#8a8a8a"),
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
    axes.set(title="Decode: a step by rows and context", ylabel="ms a step", yscale="log")
    axes.legend(frameon=False, ncols=len(series), loc="upper left")
    axes.margins(y=0.18)
    prompts, rate, start, memory = bottom.subplots(1, 4, width_ratios=[4, 1, 1, 1])
    _bars(prompts, figures, series, {_title(n): f"{n}_{{}}_ms" for n in cases if n not in decode})
    prompts.set(title="Steps with prompts", ylabel="ms a step")
    _bars(rate, figures, series, {"": "trace_{}_tok_s"})
    rate.set(title="ShareGPT-like trace", ylabel="output tokens / s of step time")
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
    first, last = parts[0][1:], parts[-1][1:]
    return {
        "decode": f"{first} x {last}",
        "prefill": f"prompt\n{first}",
        "mixed": f"{first} decodes\n+ {last}",
    }[kind]


def _bars(
    axes: Axes, figures: dict[str, Any], series: list[str], groups: dict[str, str], scale: float = 1
) -> None:
    """One group of bars a key; {} in the figure's name stands for the series."""
    width = 0.86 / len(series)
    for n, name in enumerate(series):
        label, color = SERIES[name]
        heights = [figures[key.format(name)] * scale for key in groups.values()]
        places = [i + (n - (len(series) - 1) / 2) * width for i in range(len(groups))]
        bars = axes.bar(places, heights, width * 0.94, label=label, color=color)
        texts = [f"{h:.0f}" if h >= 10 else f"{h:.1f}" for h in heights]
        axes.bar_label(bars, texts, fontsize=7, padding=1, color="#444444")
    axes.set_xticks(range(len(groups)), groups)
