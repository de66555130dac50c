"""Figures for print: PNG and PDF."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from easgd.extras import require
from easgd.report.figure import (
    Axis,
    BandSeries,
    BarSeries,
    FigureSpec,
    HorizontalLine,
    LineSeries,
    Panel,
    PanelRow,
    Series,
)
from easgd.report.scales import ticks

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "savefig.dpi": 150,
    "pdf.fonttype": 42,
}
HATCH = "///"


def write_figure(spec: FigureSpec, stem: Path) -> list[Path]:
    """Write a figure as PNG and PDF; return both paths."""
    require("matplotlib", "report", "a figure")
    from matplotlib import rc_context

    with rc_context(STYLE):
        return save(draw(spec), stem)


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write a matplotlib figure as PNG and PDF."""
    paths = [stem.with_suffix(".png"), stem.with_suffix(".pdf")]
    figure.savefig(paths[0])
    figure.set_layout_engine("none")  # places are found: the second drawing need not search again
    # No creation date: the same numbers give the same file.
    figure.savefig(paths[1], metadata={"CreationDate": None})
    return paths


def draw(spec: FigureSpec) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=spec.size, layout="constrained")
    figure.get_layout_engine().set(wspace=0.05)  # type: ignore[union-attr, call-arg]
    if spec.title:
        figure.suptitle(spec.title, fontsize=10)
    for part, row in zip(figure.subfigures(len(spec.rows), 1, squeeze=False)[:, 0], spec.rows, strict=True):
        _draw_row(part, row)
    return figure


def _draw_row(part: Any, row: PanelRow) -> None:
    drawn = part.subplots(1, len(row.panels), squeeze=False, sharey=row.share_y, width_ratios=row.width_ratios)[0]
    for axes, panel in zip(drawn, row.panels, strict=True):
        _draw_panel(axes, panel)
        if row.share_y:
            axes.label_outer()
    keys = _keys([*(s for panel in row.panels if panel.legend == "row" for s in panel.series), *row.keys])
    if keys:
        columns = min(len(keys), row.legend_columns)
        part.legend(handles=keys, loc="outside lower center", ncols=columns, frameon=False)


def _keys(series: Sequence[Series]) -> list[Artist]:
    """Return the legend's entries; series of one label and style share one."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    found: dict[Any, Artist] = {}
    for one in series:
        if isinstance(one, BarSeries):
            label = one.key or one.label
            style = _bar_style(one)
            found.setdefault((label, *style.values()), Patch(label=label, **style))
        elif not isinstance(one, BandSeries) and one.label and not (isinstance(one, LineSeries) and one.faint):
            found.setdefault((one.label, one.look), Line2D([], [], label=one.label, **_line_style(one)))
    return list(found.values())


def _line_style(line: LineSeries | HorizontalLine) -> dict[str, Any]:
    style: dict[str, Any] = {"color": line.look.colour, "linestyle": line.look.matplotlib}
    if isinstance(line, HorizontalLine):
        return {**style, "linewidth": 0.8}
    if line.marked:
        style |= {"marker": "o", "markersize": 3}
    return {**style, "linewidth": 0.6, "alpha": 0.35} if line.faint else {**style, "linewidth": 1.6}


def _bar_style(bar: BarSeries) -> dict[str, Any]:
    if bar.hatched:
        return {"facecolor": "white", "edgecolor": bar.colour, "hatch": HATCH}
    return {"facecolor": bar.colour}


def _draw_panel(axes: Axes, panel: Panel) -> None:
    bases: dict[float, float] = {}
    for series in panel.series:
        _draw_series(axes, panel, series, bases)
    _set_axis(axes, "x", panel.x)
    _set_axis(axes, "y", panel.y)
    if panel.title:
        axes.set_title(panel.title)
    if panel.horizontal:
        axes.invert_yaxis()
    bars = bool(panel.x.names or panel.y.names)
    axes.set_axisbelow(bars or "line")
    axes.grid(axis="both" if not bars else "x" if panel.horizontal else "y", alpha=0.25, linewidth=0.6)
    if panel.legend in ("inside", "below"):
        handles = _keys(panel.series)
        place: dict[str, Any] = {}
        if panel.legend == "below":
            place = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.14), "ncols": len(handles), "fontsize": 8}
        axes.legend(handles=handles, frameon=False, **place)


def _draw_series(axes: Axes, panel: Panel, series: Series, bases: dict[float, float]) -> None:
    if isinstance(series, LineSeries):
        axes.plot(series.x, series.y, **_line_style(series))
    elif isinstance(series, HorizontalLine):
        axes.axhline(series.y, **_line_style(series))
    elif isinstance(series, BandSeries):
        axes.fill_between(series.x, series.low, series.high, color=series.look.colour, alpha=0.25, linewidth=0)
    else:
        base = [bases.get(x, 0.0) for x in series.x]
        heights = [y if math.isfinite(y) else math.nan for y in series.y]
        size, start = ("height", "left") if panel.horizontal else ("width", "bottom")
        style = {size: series.width, **_bar_style(series)}
        if panel.stacked:
            style |= {start: base, "edgecolor": series.colour}  # the edge keeps a thin part visible
        (axes.barh if panel.horizontal else axes.bar)(list(series.x), heights, **style)
        if panel.stacked:
            bases |= {x: b + h for x, b, h in zip(series.x, base, heights, strict=True)}
        for x, y, text in zip(series.x, series.y, series.texts, strict=False):
            _write_beside(axes, panel.horizontal, x, y, text, series.colour)


def _write_beside(axes: Axes, horizontal: bool, x: float, y: float, text: str, colour: str) -> None:
    """Write at the end of a bar, or at the foot of the axis, in the bar's colour, where there is none."""
    style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7}
    if horizontal:
        axes.annotate(text, (y, x), (3, 0), va="center", **style)
        return
    if not math.isfinite(y):
        y, style = 0.0, {**style, "color": colour, "xycoords": axes.get_xaxis_transform()}
    axes.annotate(text, (x, y), (0, 3), ha="center", va="bottom", rotation=90, **style)


def _set_axis(axes: Axes, which: str, axis: Axis) -> None:
    def change(name: str, *values: Any, **named: Any) -> None:
        getattr(axes, f"set_{which}{name}")(*values, **named)

    change("label", axis.label)
    if axis.names:
        turned = {"rotation": 90, "fontsize": 8} if axis.names_upright else {}
        change("ticks", np.arange(len(axis.names)), axis.names, **turned)
        change("lim", -0.6, len(axis.names) - 0.4)
    low, high = axis.limits.get(axis.scale, (None, None))
    if axis.scale == "log":
        change("scale", "log")
        if low is not None and high is not None:
            marks = ticks(low, high)
            change("ticks", marks, [f"{mark:g}" for mark in marks])
            change("ticks", [], minor=True)
    if low is not None or high is not None:
        change("lim", low, high)
