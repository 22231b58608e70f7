"""Draws the figures beside the values that the PagedAttention paper prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from bench.paper.results import Results

STYLE = {
    "paged": ("tab:blue", "o"),
    "Orca (Oracle)": ("tab:green", "^"),
    "Orca (Pow2)": ("tab:orange", "s"),
    "Orca (Max)": ("tab:red", "v"),
    "FasterTransformer": ("tab:purple", "x"),
}
PARTS = {
    "useful": ("tab:blue", "KV that is computed"),
    "reserved": ("tab:green", "reserved for later tokens"),
    "internal": ("tab:orange", "internal: for tokens that never come"),
    "external": ("tab:red", "external: rounding and fragmentation"),
    "free": ("lightgray", "free"),
}
TITLES = {"sharegpt-like": "ShareGPT-like lengths", "alpaca-like": "Alpaca-like lengths"}
# What the paper prints: figure 2 (percent of token states), figure 13, figure 15 (percent).
PAPER_USEFUL = {"paged": 96.3, "Orca (Oracle)": 38.2, "Orca (Pow2)": 26.8, "Orca (Max)": 20.4}
PAPER_BATCHED = {
    "sharegpt-like": {
        "paged": 30.42,
        "Orca (Oracle)": 13.62,
        "Orca (Pow2)": 9.81,
        "Orca (Max)": 7.0,
    },
    "alpaca-like": {
        "paged": 132.44,
        "Orca (Oracle)": 72.75,
        "Orca (Pow2)": 43.24,
        "Orca (Max)": 7.0,
    },
}
PAPER_SAVING = {
    "parallel": {"alpaca-like": {2: 6.09, 4: 8.53, 6: 9.79}},
    "beams": {"alpaca-like": {2: 37.56, 4: 53.13, 6: 55.16}},
}


def draw(results: Results, folder: Path) -> None:
    """Draws each figure for which the results are there."""
    folder.mkdir(parents=True, exist_ok=True)
    if "memory" in results:
        _memory(results["memory"], folder / "paper_memory.png")
    if "roofline" in results:
        _latency(results, folder / "paper_latency.png")
    if "blocks" in results or "parallel" in results:
        _blocks(results, folder / "paper_blocks.png")


def _memory(memory: dict[str, Any], file: Path) -> None:
    figure, rows = plt.subplots(2, len(memory), figsize=(5.6 * len(memory), 7.6), squeeze=False)
    for (trace, systems), shares, counts in zip(memory.items(), *rows, strict=True):
        names = list(systems)
        bottom = [0.0] * len(names)
        for part, (color, label) in PARTS.items():
            heights = [100 * systems[name][part] for name in names]
            shares.bar(names, heights, 0.62, bottom, color=color, label=label)
            bottom = [b + h for b, h in zip(bottom, heights, strict=True)]
        for place, name in enumerate(names):
            useful = 100 * systems[name]["useful"]
            inside = useful > 12
            shares.text(
                place,
                useful / 2 if inside else useful + 1,
                f"{useful:.1f}",
                ha="center",
                va="center" if inside else "bottom",
                color="white" if inside else "black",
            )
        shares.set(title=TITLES[trace], ylabel="share of the KV memory (%)", ylim=(0, 100))
        printed = PAPER_BATCHED[trace]
        for offset, label, values, color in (
            (-0.2, "here", [systems[n]["batched_sequences"] for n in names], "tab:blue"),
            (0.2, "printed in the paper", [printed[n] for n in names], "lightgray"),
        ):
            places = [place + offset for place in range(len(names))]
            bars = counts.bar(places, values, 0.38, label=label, color=color)
            counts.bar_label(bars, fmt="%.1f", fontsize=8)
        counts.set(ylabel="sequences that run (mean)", xticks=range(len(names)), xticklabels=names)
        counts.margins(y=0.12)
        counts.legend()
    useful = ", ".join(f"{n} {v}" for n, v in PAPER_USEFUL.items())
    figure.suptitle(f"KV memory while requests queue. Paper's figure 2, useful %: {useful}", size=9)
    handles, labels = rows[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=3, fontsize=8)
    figure.tight_layout(rect=(0, 0.06, 1, 0.99))
    figure.savefig(file, dpi=90)
    plt.close(figure)


def _latency(results: Results, file: Path) -> None:
    costs = {
        "roofline": "OPT-13B on an A100 by roofline",
        "measured": "SmolLM2-135M on 2 CPU cores, 1/4 lengths",
    }
    costs = {cost: title for cost, title in costs.items() if cost in results}
    figure, rows = plt.subplots(len(costs), 2, figsize=(10.5, 4.1 * len(costs)), squeeze=False)
    for (cost, title), row in zip(costs.items(), rows, strict=True):
        for axes, (trace, systems) in zip(row, results[cost].items(), strict=True):
            most = 1000 if cost == "roofline" else 2000
            for name, points in systems.items():
                rates, latencies, _ = zip(*points, strict=True)
                color, marker = STYLE[name]
                axes.plot(
                    rates,
                    [1000 * y for y in latencies],
                    color=color,
                    marker=marker,
                    markersize=4,
                    label=name,
                )
            if cost == "measured" and trace == "sharegpt-like":
                _real(axes, results.get("real", []))
            axes.set(
                title=f"{title}\n{TITLES[trace]}",
                xlabel="request rate (requests/s)",
                ylabel="normalised latency (ms/token)",
                ylim=(0, most),
            )
            axes.set_xlim(left=0)
            axes.grid(alpha=0.3)
    handles, labels = rows[-1][0].get_legend_handles_labels()
    order = sorted(range(len(labels)), key=lambda at: handles[at].get_marker() == "*")
    handles, labels = ([found[at] for at in order] for found in (handles, labels))
    figure.legend(handles, labels, loc="lower center", ncols=4, fontsize=9)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    figure.savefig(file, dpi=90)
    plt.close(figure)


def _real(axes: Axes, runs: list[dict[str, Any]]) -> None:
    """Runs of the real engine, and simulations of the same arrivals."""
    labels: list[str | None] = ["real engine, few arrivals", "simulated, same arrivals"]
    for run in runs:
        color, _ = STYLE[run["system"]]
        found = (("latency", color, "black"), ("simulated_latency", "none", color))
        for (key, face, edge), label in zip(found, labels, strict=True):
            place = (run["rate"], 1000 * run[key])
            axes.plot(*place, "*", color=face, markersize=13, mec=edge, label=label)
        labels = [None, None]


def _blocks(results: Results, file: Path) -> None:
    figure, (latency, waste, saving) = plt.subplots(1, 3, figsize=(14, 4.3))
    for trace, sizes in results.get("blocks", {}).items():
        places = [int(size) for size in sizes]
        values = list(sizes.values())
        latency.plot(places, [1000 * v[0] for v in values], marker="o", label=TITLES[trace])
        waste.plot(places, [100 * v[1] for v in values], marker="o", label=TITLES[trace])
    for axes, what in ((latency, "normalised latency (ms/token)"), (waste, "waste of held KV (%)")):
        axes.set_xscale("log", base=2)
        axes.set(xlabel="block size (tokens)", ylabel=what, ylim=(0, None))
        axes.set_xticks([2**i for i in range(9)], [str(2**i) for i in range(9)])
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    latency.set_title("Block size: memory's side only")
    waste.axhline(4, color="gray", linestyle=":")
    waste.set_title("Block size: waste (dotted: 4 %)")
    for way, line in (("parallel", "--"), ("beams", "-")):
        for (trace, widths), color in zip(
            results.get(way, {}).items(), ("tab:blue", "tab:orange"), strict=False
        ):
            label = f"{'beam search' if way == 'beams' else 'parallel samples'}, {trace}"
            places = [int(width) for width in widths]
            shares = [100 * share for share in widths.values()]
            saving.plot(places, shares, line, marker="o", color=color, label=label)
            printed = PAPER_SAVING[way].get(trace)
            if printed:
                saving.plot(printed.keys(), printed.values(), "x", color="black")
    saving.plot([], [], "x", color="black", label="printed in the paper (Alpaca)")
    saving.set(
        title="Blocks saved by sharing",
        xlabel="samples or beams a request",
        ylabel="memory saving (%)",
        xticks=[2, 4, 6],
        ylim=(0, 100),
    )
    saving.grid(alpha=0.3)
    saving.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(file, dpi=90)
    plt.close(figure)
