"""The page's interactive plots, as plain data for plotly.js. A trace carries the number of its method in `meta`."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from easgd.report.data import PANELS, Line, ReportData
from easgd.report.levels import time_to
from easgd.report.scales import is_log, limits
from easgd.report.style import PARTS

Plot = dict[str, Any]
MAX_POINTS = 2000


def make_plots(model: ReportData, scale: str = "auto") -> list[Plot]:
    """Return every plot that has something to show: where it goes, what it draws, and its axes."""
    plots = [_curve(model, name, words, scale) for name, words in PANELS.items()]
    plots += [_bars(model), _split(model)]
    plots += [
        _scanned(model, "distance", "distance to the center", "‖x − x̃‖"),
        _scanned(model, "staleness", "staleness", "center updates since the last exchange"),
        _bytes(model),
    ]
    return [plot for plot in plots if plot["data"]]


def _numbers(values: Any, factor: float = 1.0) -> list[float | None]:
    """Return numbers as JSON can hold them, with six digits; what is not finite is a gap."""
    return [float(f"{factor * v:.6g}") if math.isfinite(v) else None for v in map(float, values)]


def _thinned(curves: dict[str, Any]) -> Any:
    """Return the places of at most MAX_POINTS points: more cannot be seen, and a page must stay light."""
    count = len(curves["time"])
    return np.unique(np.linspace(0, count - 1, min(count, MAX_POINTS)).astype(int)) if count else slice(0)


def _line(line: Line, number: int, width: float = 2.2, opacity: float = 1.0) -> dict[str, Any]:
    style = {"color": line.look.colour, "dash": line.look.plotly, "width": width}
    return {"type": "scatter", "mode": "lines", "name": line.label, "meta": number, "line": style, "opacity": opacity}


def _curve(model: ReportData, name: str, words: str, scale: str) -> Plot:
    factor, unit = (100.0, " [%]") if name == "test_error" else (1.0, " (nll)")
    traces = []
    for number, line in enumerate(model.lines):
        for curves in line.seeds:
            at = _thinned(curves)
            xy = {"x": _numbers(curves["time"][at], 1 / model.seconds), "y": _numbers(curves[name][at], factor)}
            traces.append({**_line(line, number, 1.0, 0.35), **xy, "hoverinfo": "skip"})
        at = _thinned(line.mean)
        x, y = _numbers(line.mean["time"][at], 1 / model.seconds), _numbers(line.mean[name][at], factor)
        if any(value is not None for value in y):
            traces.append({**_line(line, number), "x": x, "y": y})
    log = is_log(model.lines, scale)
    ends: dict[str, Any] = {"type": "log" if log else "linear"}
    for kind in (False, True):
        if found := limits(model.lines, name, kind):
            ends["log" if kind else "linear"] = [factor * found[0], factor * found[1]]
    return _plot(name, words + unit, traces, model.axis, **ends)


def _plot(name: str, title: str, traces: list[dict[str, Any]], axis: str, **more: Any) -> Plot:
    return {"id": name, "title": title, "data": traces, "axis": axis, "timed": True, **more}


def _scanned(model: ReportData, name: str, title: str, words: str) -> Plot:
    traces = []
    for number, line in enumerate(model.lines):
        x, y = getattr(line.choice.runs[0].scan, name).points()
        if x:
            traces.append({**_line(line, number), "x": _numbers(x, 1 / model.seconds), "y": _numbers(y)})
    return _plot(name, f"{title}: {words}", traces, model.axis, type="linear")


def _bytes(model: ReportData) -> Plot:
    traces = []
    for number, line in enumerate(model.lines):
        at = _thinned(line.mean)
        y = _numbers(line.mean["bytes"][at], 1e-9)
        if any(y):
            traces.append({**_line(line, number), "x": _numbers(line.mean["time"][at], 1 / model.seconds), "y": y})
    return _plot("bytes", "exchanged by all workers [GB]", traces, model.axis, type="linear")


def _bars(model: ReportData) -> Plot:
    names = [f"{100 * level:.3g} %" for level in model.levels]
    traces = []
    for number, line in enumerate(model.lines):
        times = [time_to(line.choice, level) / model.seconds for level in model.levels]
        if any(map(math.isfinite, times)):
            traces.append(
                {
                    "type": "bar", "name": line.label, "meta": number, "x": names, "y": _numbers(times),
                    "marker": {"color": line.look.colour},
                }
            )  # fmt: skip
    plot = _plot("bars", f"{model.axis} to reach a test error", traces, "test error", type="linear")
    return {**plot, "timed": False, "names": True}


def _split(model: ReportData) -> Plot:
    """Bars of compute, data, communication and waiting, as shares of the whole."""
    shown = [line for line in model.lines if line.choice.runs[0].scan.steps]
    traces = []
    for part, colour in PARTS.items():
        shares = []
        for line in shown:
            split = line.choice.runs[0].scan.breakdown
            whole = split.compute + split.data + split.communication
            own = split.communication - split.waiting if part == "communication" else getattr(split, part)
            shares.append(100 * own / whole if whole else 0.0)
        bar = {"type": "bar", "name": part, "orientation": "h", "marker": {"color": colour}}
        traces.append({**bar, "y": [line.label for line in shown], "x": _numbers(shares)})
    plot = _plot("split", "share of a worker's time [%]", traces if shown else [], "share [%]")
    return {**plot, "timed": False, "stacked": True, "rows": len(shown), "keys": PARTS}
