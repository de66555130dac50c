"""The report's figures, described once for page and print."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from easgd.report.data import PANELS, Line, ReportData
from easgd.report.figure import Axis, BarSeries, FigureSpec, LineSeries, Panel, PanelRow
from easgd.report.levels import time_to
from easgd.report.scales import WIDE, is_log, limits
from easgd.report.style import PARTS

SYMBOLS = {"workers": "p", "period": "τ"}
ROW_LINES = 8
"""More methods than this are spread over rows, as the paper spreads τ and p."""


def rows_of(lines: Sequence[Line], by: Sequence[str] | None = None) -> list[tuple[str, list[Line]]]:
    """Spread methods over rows: one per p, else one per τ, or by the settings named; sequential ones are in every row.

    Where no settings are named, few methods stay in one row.
    """
    if by is not None or len(lines) > ROW_LINES:
        for name in by or ("workers", "period"):
            values = sorted({getattr(n.choice.config, name) for n in lines if _parallel(n)}, key=lambda v: v or 0)
            if len(values) > 1:
                shown = [[n for n in lines if not _parallel(n) or getattr(n.choice.config, name) == v] for v in values]
                return [(f"{SYMBOLS[name]} = {v}", row) for v, row in zip(values, shown, strict=True)]
    return [("", list(lines))]


def _parallel(line: Line) -> bool:
    return line.choice.config is not None and not line.choice.sequential


def curves(
    model: ReportData,
    scale: str = "auto",
    rows: Sequence[tuple[str, list[Line]]] | None = None,
    names: Sequence[str] = tuple(PANELS),
) -> FigureSpec:
    """Training loss, test loss, test error (or the panels in `names`) against time, a row of panels per `rows`."""
    rows = rows if rows is not None else rows_of(model.lines)
    legend_lines = max(math.ceil(len(lines) / 4) for _, lines in rows)
    drawn = [
        PanelRow([curve_panel(model, lines, n, scale, title if i == 1 else "") for i, n in enumerate(names)])
        for title, lines in rows
    ]
    return FigureSpec(drawn, size=(10.5, 0.3 + len(rows) * (2.7 + 0.24 * legend_lines)))


def curve_panel(model: ReportData, lines: Sequence[Line], name: str, scale: str = "auto", title: str = "") -> Panel:
    """One quantity against time. The limits are those of all methods, so that rows can be compared."""
    factor, unit = (100.0, "[%]") if name == "test_error" else (1.0, "(nll)")
    series, numbers = [], {id(line): number for number, line in enumerate(model.lines)}
    for line in lines:
        for found, faint in [*((seed, True) for seed in line.seeds), (line.mean, False)]:
            x, y = found["time"] / model.seconds, factor * found[name]
            series.append(LineSeries(x, y, line.label, line.look, faint, numbers.get(id(line))))
    log = is_log(model.lines, scale)
    ends = {kind: limits(model.lines, name, kind == "log") for kind in ("linear", "log")}
    shown = {kind: (factor * found[0], factor * found[1]) for kind, found in ends.items() if found is not None}
    y_axis = Axis(f"{PANELS[name]} {unit}", "log" if log and shown else "linear", shown)
    return Panel(name, _time_axis(model), y_axis, series, title, timed=True)


def _time_axis(model: ReportData) -> Axis:
    return Axis(model.axis, limits={"linear": (0, None)})


def record_panel(model: ReportData, name: str, label: str) -> Panel:
    """A quantity of the workers ("loss", "distance" or "staleness") against time, from the first seed's records."""
    series = []
    for number, line in enumerate(model.lines):
        times, values = getattr(line.choice.runs[0].scan, name).points()
        series.append(LineSeries([t / model.seconds for t in times], values, line.label, line.look, method=number))
    return Panel(name, _time_axis(model), Axis(label), series, timed=True)


def bytes_panel(model: ReportData) -> Panel:
    """Bytes exchanged against time; methods that exchange nothing have no curve."""
    series = [
        LineSeries(n.mean["time"] / model.seconds, 1e-9 * n.mean["bytes"], n.label, n.look, method=number)
        for number, n in enumerate(model.lines)
        if any(n.mean["bytes"])
    ]
    return Panel("bytes", _time_axis(model), Axis("exchanged by all workers [GB]"), series, timed=True)


def times_to_levels(model: ReportData) -> FigureSpec:
    """Time to each level against the number of workers, as in the paper's supplement; no bar: never reached."""
    times = [time_to(c, level) / model.seconds for c in model.choices for level in model.levels]
    finite = [time for time in times if math.isfinite(time) and time > 0]
    log = bool(finite) and max(finite) > WIDE * min(finite)
    ends = {"log": (min(finite) / 1.5, 1.2 * max(finite))} if log else {}
    y = Axis(f"{model.axis} to reach a test error", "log" if log else "linear", ends)
    panels = [_level_panel(model, level, y) for level in model.levels]
    return FigureSpec([PanelRow(panels, share_y=True)], size=(max(4.0, 2.7 * len(panels)), 3.5))


def _level_panel(model: ReportData, level: float, y: Axis) -> Panel:
    workers = [None if n.choice.config is None else n.choice.config.workers for n in model.lines]
    places = sorted(set(workers), key=lambda p: (p is None, p or 0))
    width = 0.84 / max(map(workers.count, places))
    series = []
    for number, (p, line) in enumerate(zip(workers, model.lines, strict=True)):
        # Bars of one p stand side by side, centered on its tick.
        before, beside = workers[:number].count(p), workers.count(p)
        at = places.index(p) + (before - (beside - 1) / 2) * width
        time = time_to(line.choice, level) / model.seconds
        series.append(
            BarSeries(
                [at], [time], line.label, line.look.colour, 0.92 * width, [] if math.isfinite(time) else ["never"],
                # p stands on the axis: methods that differ in it alone share a colour and a legend entry.
                key=re.sub(r" p=\d+", "", line.label), method=number,
            )
        )  # fmt: skip
    x = Axis("workers p", names=["?" if p is None else str(p) for p in places])
    return Panel(f"{100 * level:.3g} %", x, y, series, title=f"test error {100 * level:.3g} %")


def split_panel(model: ReportData) -> Panel:
    """Compute, data, communication and waiting as shares of a worker's time, stacked."""
    shown = [(line.label, line.choice.runs[0].scan) for line in model.lines if line.choice.runs[0].scan.steps]

    def share(split: Any, part: str) -> float:
        whole = split.compute + split.data + split.communication
        own = split.communication - split.waiting if part == "communication" else getattr(split, part)
        return 100 * own / whole if whole else 0.0

    series = [
        BarSeries(range(len(shown)), [share(scan.breakdown, part) for _, scan in shown], part, colour)
        for part, colour in PARTS.items() if shown
    ]  # fmt: skip
    names = Axis(names=[label for label, _ in shown])
    title = "share of a worker's time [%]"
    return Panel("split", Axis("share [%]"), names, series, title, horizontal=True, stacked=True)
