"""Figures for the page, as plain data that `page.js` hands to plotly.js.

A trace carries the number of its method in `meta`; the page's legend hides and shows by it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from easgd.report.data import PANELS, ReportData
from easgd.report.figure import BarSeries, LineSeries, Panel
from easgd.report.figures import bytes_panel, curve_panel, record_panel, split_panel, times_to_levels

Plot = dict[str, Any]
MAX_POINTS = 2000
"""More cannot be seen, and a page must stay light."""


def make_plots(model: ReportData, scale: str = "auto") -> list[Plot]:
    """Return every plot that has something to show."""
    levels = times_to_levels(model).rows[0].panels
    plots = [
        *(line_plot(curve_panel(model, model.lines, name, scale)) for name in PANELS),
        *([level_plot(levels)] if levels else []),
        stacked_plot(split_panel(model)),
        line_plot(record_panel(model, "loss", "loss of the workers on their own batches")),
        line_plot(record_panel(model, "distance", "distance to the center: ‖x − x̃‖")),
        line_plot(record_panel(model, "staleness", "staleness: center updates since the last exchange")),
        line_plot(bytes_panel(model)),
    ]
    return [plot for plot in plots if plot["data"]]


def line_plot(panel: Panel) -> Plot:
    traces = [_trace(line) for line in panel.series if isinstance(line, LineSeries)]
    # A method that has measured nothing must not appear in the box under the pointer.
    drawn = [trace for trace in traces if any(y is not None for y in trace["y"]) or "hoverinfo" in trace]
    return _plot(panel, panel.name, panel.y.label, drawn, type=panel.y.scale, **panel.y.limits)


def level_plot(panels: Sequence[Panel]) -> Plot:
    """One plot of all levels: a group of bars per panel, a bar per method."""
    bars = [[bar for bar in panel.series if isinstance(bar, BarSeries)] for panel in panels]
    traces = [
        {
            "type": "bar", "name": methods[0].label, "meta": methods[0].method, "x": [panel.name for panel in panels],
            "y": _numbers([bar.y[0] for bar in methods]), "marker": {"color": methods[0].colour},
        }
        for methods in zip(*bars, strict=True) if any(math.isfinite(bar.y[0]) for bar in methods)
    ]  # fmt: skip
    # Bars grow from zero, so this axis is linear whatever print does.
    plot = _plot(panels[0], "bars", panels[0].y.label, traces, type="linear", names=True)
    return {**plot, "axis": "test error"}


def stacked_plot(panel: Panel) -> Plot:
    bars = [bar for bar in panel.series if isinstance(bar, BarSeries)]
    names = list(panel.y.names)
    traces = [
        {
            "type": "bar", "name": bar.label, "orientation": "h", "marker": {"color": bar.colour}, "y": names,
            "x": _numbers(bar.y),
        }
        for bar in bars
    ]  # fmt: skip
    keys = {bar.label: bar.colour for bar in bars}
    return _plot(panel, panel.name, panel.title, traces, stacked=True, rows=len(names), keys=keys)


def _plot(panel: Panel, name: str, title: str, traces: list[dict[str, Any]], **more: Any) -> Plot:
    return {"id": name, "title": title, "data": traces, "axis": panel.x.label, "timed": panel.timed, **more}


def _trace(line: LineSeries) -> dict[str, Any]:
    count = len(line.x)
    kept = np.unique(np.linspace(0, count - 1, min(count, MAX_POINTS)).astype(int)) if count else slice(0)
    width, opacity = (1.0, 0.35) if line.faint else (2.2, 1.0)
    return {
        "type": "scatter", "mode": "lines", "name": line.label, "meta": line.method,
        "line": {"color": line.look.colour, "dash": line.look.plotly, "width": width}, "opacity": opacity,
        "x": _numbers(np.asarray(line.x)[kept]), "y": _numbers(np.asarray(line.y)[kept]),
        **({"hoverinfo": "skip"} if line.faint else {}),
    }  # fmt: skip


def _numbers(values: Any) -> list[float | None]:
    """Return numbers as JSON can hold them, with six digits; what is not finite is a gap."""
    return [float(f"{v:.6g}") if math.isfinite(v) else None for v in map(float, values)]
