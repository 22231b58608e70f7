"""The tables and the page of figures of a comparison."""

from __future__ import annotations

import html
import io
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
from matplotlib.ticker import FuncFormatter, LogLocator
from PIL import Image

from bench.peers.compare.records import Results

# sweep, figure, title, unit, whether the axis is logarithmic
PANELS = (
    ("concurrency", "output_tok_s", "Throughput", "output tokens a second", False),
    ("concurrency", "ttft_ms", "Time to first token, median", "ms", True),
    ("rate", "normalised_ms", "Normalised latency, mean", "ms an output token", True),
    ("rate", "latency_ms", "Latency, median", "ms", True),
)
AXES = {"concurrency": "requests in flight", "rate": "new requests a second (Poisson)"}
COLOURS = {
    "jaxserve": "#d62728",
    "vllm": "#1f77b4",
    "transformers static": "#7f7f7f",
    "transformers continuous": "#2ca02c",
    "llama.cpp": "#9467bd",
}
LINES = {"float32": "-", "bfloat16": "--", "Q4_1": ":"}
MARKERS = {"float32": "o", "bfloat16": "s", "Q4_1": "^"}
TITLE = "SmolLM2-135M, the same requests for all; median of the rounds, bars from lowest to highest"
OTHERS = "Other programs' share of the processor"
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75em; margin: 2em auto; padding: 0 1em; }
table { border-collapse: collapse; margin: 1em 0; } caption { text-align: left; font-weight: 600; }
td, th { border: 1px solid #ccc; padding: .2em .6em; text-align: right; }
td:first-child, th:first-child { text-align: left; } svg { max-width: 100%; height: auto; }
"""
Table = tuple[str, list[str], list[list[str]]]  # caption, head, rows


def machine() -> str:
    """The processor, its cores and memory, and whether it has matrix units."""
    cpu = Path("/proc/cpuinfo").read_text()
    fields = dict(
        tuple(part.strip() for part in line.split(":", 1))
        for line in cpu.splitlines()
        if ":" in line
    )
    flags = fields.get("flags", "").split()
    widest = next((name for name in ("avx512f", "avx2", "avx") if name in flags), "no AVX")
    bf16 = [name for name in ("amx_bf16", "avx512_bf16") if name in flags]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{fields.get('model name', 'unknown processor')}, {os.cpu_count()} cores, "
        f"{memory:.0f} GiB, {widest}, bf16 units: {', '.join(bf16) or 'none'}"
    )


def tables(results: Results) -> list[Table]:
    """A table for each panel: a row for each engine, a column for each load."""
    made = []
    for sweep, figure, title, unit, _ in PANELS:
        values = results.values(sweep)
        if not values:
            continue
        rows = []
        for engine in results.engines():
            cells = [results.spread(engine, sweep, value, figure) for value in values]
            rows.append([engine, *("-" if cell is None else str(cell) for cell in cells)])
        caption = f"{title} ({unit}) by {AXES[sweep]}"
        made.append((caption, ["", *(f"{value:g}" for value in values)], rows))
    return made


def leads(results: Results) -> list[str]:
    """Whom our engine is ahead of, at each load, by more than the spread over the rounds."""
    ours = next((name for name in results.engines() if name.startswith("jaxserve")), "")
    found = []
    for sweep, figure, title, *_ in PANELS:
        for value in results.values(sweep):
            behind = results.ahead(ours, sweep, value, figure, higher=figure == "output_tok_s")
            if behind:
                load = f"{title}, {value:g} {AXES[sweep]}"
                found.append(f"{load}: {ours} ahead of {', '.join(behind)}")
    return found


def markdown(results: Results, facts: Mapping[str, str]) -> str:
    lines = [f"{name}: {text}  " for name, text in facts.items()]
    for caption, head, rows in tables(results):
        lines += ["", f"**{caption}**", "", _row(head), _row(["---"] * len(head))]
        lines += [_row(row) for row in rows]
    lines += ["", "Where an engine's worst round is better than another's best:", ""]
    lines += [f"- {line}" for line in leads(results)] or ["- nowhere"]
    missing = _missing(results)
    if missing:
        lines += ["", "Missing figures:", "", *(f"- {line}" for line in missing)]
    return "\n".join(lines) + "\n"


def page(results: Results, facts: Mapping[str, str]) -> str:
    """The tables and figures as one HTML file."""
    picture = io.StringIO()
    with plt.rc_context({"svg.fonttype": "none"}):
        _draw(results, facts).savefig(picture, format="svg")
    svg = picture.getvalue()
    parts = [f"<h1>Engines compared</h1>{svg[svg.index('<svg') :]}"]
    for caption, head, rows in tables(results):
        cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in rows
        )
        parts.append(f"<table><caption>{html.escape(caption)}</caption><tr>{cells}</tr>{body}")
        parts.append("</table>")
    for line in _missing(results):
        parts.append(f"<p>Missing: {html.escape(line)}</p>")
    parts += [f"<p>{html.escape(name)}: {html.escape(text)}</p>" for name, text in facts.items()]
    head = f'<meta charset="utf-8"><title>Engines compared</title><style>{STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>'


def flat(results: Results) -> dict[str, Any]:
    """Medians by engine, load and figure."""
    return {
        f"{engine.replace(' ', '_')}_{sweep}_{value:g}_{figure}": round(found.median, 2)
        for sweep, figure, *_ in PANELS
        for engine in results.engines()
        for value in results.values(sweep)
        if (found := results.spread(engine, sweep, value, figure)) is not None
    }


def write(folder: Path, results: Results, facts: Mapping[str, str]) -> None:
    """compare.md, compare.json, compare.png and compare.html."""
    (folder / "compare.md").write_text(markdown(results, facts))
    (folder / "compare.json").write_text(json.dumps({**facts, **flat(results)}, indent=1) + "\n")
    (folder / "compare.html").write_text(page(results, facts))
    picture = io.BytesIO()
    _draw(results, facts).savefig(picture, dpi=100)
    plt.close("all")
    # A palette makes it a third of the size.
    Image.open(picture).convert("RGB").quantize(64).save(folder / "compare.png", optimize=True)


def _draw(results: Results, facts: Mapping[str, str]) -> plt.Figure:
    figure, axes = plt.subplots(2, 2, figsize=(12, 9.4))
    beside = f"other programs used {facts[OTHERS]} of the processor"
    figure.suptitle(f"{TITLE}\n{facts['Machine']}, {facts['Date']}; {beside}", fontsize=10)
    for axis, (sweep, name, title, unit, logarithmic) in zip(axes.flat, PANELS, strict=True):
        values = results.values(sweep)
        for engine in results.engines():
            _line(axis, results, engine, sweep, name)
        axis.set(title=title, xlabel=AXES[sweep], ylabel=unit)
        if sweep == "concurrency":
            axis.set_xscale("log", base=2)
        axis.set_xticks(values, [f"{value:g}" for value in values])
        if logarithmic:
            axis.set_yscale("log")
            axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:,.0f}"))
        else:
            axis.set_ylim(bottom=0)
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    handles = {}
    for axis in axes.flat:
        handles |= {
            label: line for line, label in zip(*axis.get_legend_handles_labels(), strict=True)
        }
    figure.legend(handles.values(), handles.keys(), loc="lower center", ncols=4, frameon=False)
    figure.tight_layout(rect=(0, 0.06, 1, 1))
    return figure


def _line(axis: plt.Axes, results: Results, engine: str, sweep: str, name: str) -> None:
    """The median over the rounds, with bars from the lowest to the highest."""
    found = {
        value: spread
        for value in results.values(sweep)
        if (spread := results.spread(engine, sweep, value, name)) is not None
    }
    if not found:
        return
    kind, _, arithmetic = engine.rpartition(" ")
    medians = [spread.median for spread in found.values()]
    bars = (
        [spread.median - spread.low for spread in found.values()],
        [spread.high - spread.median for spread in found.values()],
    )
    axis.errorbar(
        list(found),
        medians,
        yerr=bars,
        label=engine,
        color=COLOURS[kind],
        linestyle=LINES[arithmetic],
        marker=MARKERS[arithmetic],
        markersize=5,
        capsize=3,
        linewidth=2.4 if kind == "jaxserve" else 1.5,
    )


def _missing(results: Results) -> list[str]:
    return [
        f"{engine}: {reason}" for engine in results.engines() for reason in results.reasons(engine)
    ]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
