"""The report's figures for print, in the paper's layout: PNG and PDF."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from easgd.report.data import PANELS, Line, ReportData
from easgd.report.levels import time_to
from easgd.report.scales import WIDE, is_log, limits, ticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SYMBOLS = {"workers": "p", "period": "τ"}
ROW_LINES = 8
"""More methods than this are spread over rows, as the paper spreads τ and p."""
STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "savefig.dpi": 150,
    "pdf.fonttype": 42,
}


def write_figures(model: ReportData, folder: Path, scale: str = "auto") -> list[Path]:
    """Draw what there is to draw; return the files."""
    from matplotlib import rc_context

    with rc_context(STYLE):
        paths = []
        if any(len(line.mean["time"]) for line in model.lines):
            paths += save(curves(model, scale), folder / "curves")
        if any(math.isfinite(time_to(choice, level)) for choice in model.choices for level in model.levels):
            paths += save(bars(model), folder / "time-to-error")
        return paths


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write a figure as PNG and PDF."""
    paths = [stem.with_suffix(".png"), stem.with_suffix(".pdf")]
    figure.savefig(paths[0])
    figure.set_layout_engine("none")  # places are found: the second drawing need not search again
    # No creation date: the same numbers give the same file.
    figure.savefig(paths[1], metadata={"CreationDate": None})
    return paths


def rows_of(lines: Sequence[Line], by: Sequence[str] | None = None) -> list[tuple[str, list[Line]]]:
    """Spread methods over rows: one per p, else one per τ, or by the settings named; sequential ones are in every row.

    Where no settings are named, few methods stay in one row.
    """
    if by is not None or len(lines) > ROW_LINES:
        for name in by or ("workers", "period"):
            symbol = SYMBOLS[name]
            values = sorted({getattr(n.choice.config, name) for n in lines if _parallel(n)}, key=lambda v: v or 0)
            if len(values) > 1:
                return [
                    (f"{symbol} = {v}", [n for n in lines if not _parallel(n) or getattr(n.choice.config, name) == v])
                    for v in values
                ]
    return [("", list(lines))]


def _parallel(line: Line) -> bool:
    return line.choice.config is not None and not line.choice.sequential


def curves(
    model: ReportData,
    scale: str = "auto",
    rows: Sequence[tuple[str, list[Line]]] | None = None,
    names: Sequence[str] = tuple(PANELS),
) -> Figure:
    """Training loss, test loss, test error (or the panels in `names`) against time, a row of panels per `rows`."""
    from matplotlib.figure import Figure

    rows = rows if rows is not None else rows_of(model.lines)
    legend_lines = max(math.ceil(len(lines) / 4) for _, lines in rows)
    figure = Figure(figsize=(10.5, 0.3 + len(rows) * (2.7 + 0.24 * legend_lines)), layout="constrained")
    figure.get_layout_engine().set(wspace=0.05)  # type: ignore[union-attr, call-arg]
    for subfigure, (title, lines) in zip(figure.subfigures(len(rows), 1, squeeze=False)[:, 0], rows, strict=True):
        panels = subfigure.subplots(1, len(names))
        for axes, name in zip(panels, names, strict=True):
            _panel(axes, model, lines, name, PANELS[name], scale)
        handles, labels = panels[0].get_legend_handles_labels()
        if title:
            panels[1].set_title(title)
        if handles:
            subfigure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 4), frameon=False)
    return figure


def _panel(axes: Axes, model: ReportData, lines: Sequence[Line], name: str, words: str, scale: str) -> None:
    factor = 100.0 if name == "test_error" else 1.0
    log = is_log(model.lines, scale)
    for line in lines:
        style: dict[str, Any] = {"color": line.look.colour, "linestyle": line.look.matplotlib}
        for seed in line.seeds:
            axes.plot(seed["time"] / model.seconds, factor * seed[name], **style, linewidth=0.6, alpha=0.35)
        axes.plot(line.mean["time"] / model.seconds, factor * line.mean[name], **style, linewidth=1.6, label=line.label)
    axes.set(xlabel=model.axis, ylabel=f"{words} [%]" if factor > 1 else f"{words} (nll)")
    if found := limits(model.lines, name, log):
        low, high = factor * found[0], factor * found[1]
        if log:
            axes.set_yscale("log")
            marks = ticks(low, high)
            axes.set_yticks(marks, [f"{mark:g}" for mark in marks])
            axes.minorticks_off()
        axes.set_ylim(low, high)
    axes.set_xlim(left=0)
    axes.grid(alpha=0.25, linewidth=0.6)


def bars(model: ReportData) -> Figure:
    """Time to each level against the number of workers, as in the paper's supplement; no bar: never reached."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(4.0, 2.7 * len(model.levels)), 3.5), layout="constrained")
    panels = figure.subplots(1, len(model.levels), squeeze=False, sharey=True)[0]
    times = [time_to(c, level) / model.seconds for c in model.choices for level in model.levels]
    finite = [time for time in times if math.isfinite(time) and time > 0]
    log = bool(finite) and max(finite) > WIDE * min(finite)
    for axes, level in zip(panels, model.levels, strict=True):
        _bar_panel(axes, model, level)
        axes.set_title(f"test error {100 * level:.3g} %")
        axes.set_xlabel("workers p")
        if log:
            axes.set_yscale("log")
            marks = ticks(min(finite) / 1.5, 1.2 * max(finite))
            axes.set_yticks(marks, [f"{mark:g}" for mark in marks])
            axes.minorticks_off()
        axes.grid(axis="y", alpha=0.25, linewidth=0.6)
        axes.set_axisbelow(True)
    panels[0].set_ylabel(f"{model.axis} to reach it")
    handles, names = panels[0].get_legend_handles_labels()
    # p stands on the axis: methods that differ in it alone share a colour and an entry.
    short = [re.sub(r" p=\d+", "", name) for name in names]
    found = {(name, bar[0].get_facecolor()): bar for bar, name in zip(handles, short, strict=True)}
    shown = [name for name, _ in found]
    figure.legend(found.values(), shown, loc="outside lower center", ncols=min(len(shown), 4), frameon=False)
    return figure


def _bar_panel(axes: Axes, model: ReportData, level: float) -> None:
    workers = [None if n.choice.config is None else n.choice.config.workers for n in model.lines]
    places = sorted(set(workers), key=lambda p: (p is None, p or 0))
    crowd = max(workers.count(p) for p in places)
    width = 0.84 / crowd
    for p, line in zip(workers, model.lines, strict=True):
        mates = [n for q, n in zip(workers, model.lines, strict=True) if q == p]
        at = places.index(p) + (mates.index(line) - (len(mates) - 1) / 2) * width
        time = time_to(line.choice, level) / model.seconds
        reached = math.isfinite(time)
        axes.bar(at, time if reached else math.nan, 0.92 * width, color=line.look.colour, label=line.label)
        if not reached:
            axes.text(
                at, 0.02, "never", transform=axes.get_xaxis_transform(), rotation=90, color=line.look.colour,
                ha="center", va="bottom", fontsize=7,
            )  # fmt: skip
    axes.set_xticks(range(len(places)), ["?" if p is None else str(p) for p in places])
    axes.set_xlim(-0.6, len(places) - 0.4)
