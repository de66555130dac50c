"""What a figure shows, as plain data. `figures` describes each figure once; `render_plotly` draws it on the page and
`render_matplotlib` as PNG and PDF.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from easgd.report.style import Look


@dataclass(frozen=True)
class LineSeries:
    x: Any
    y: Any
    label: str
    look: Look
    faint: bool = False  # one seed's own curve behind the mean: thin, and not in the legend
    method: int | None = None  # its number in the page's legend
    marked: bool = False  # show every point: where there are few of them, or only one


@dataclass(frozen=True)
class BarSeries:
    """Bars centered at the places `x` of a category axis; a height that is not finite draws no bar."""

    x: Sequence[float]
    y: Sequence[float]
    label: str
    colour: str
    width: float = 0.8
    texts: Sequence[str] = ()  # one per bar, at its end; at the foot of the axis where there is no bar
    hatched: bool = False
    key: str = ""  # the legend's text where it is not the label
    method: int | None = None


@dataclass(frozen=True)
class HorizontalLine:
    y: float
    look: Look
    label: str = ""


@dataclass(frozen=True)
class BandSeries:
    """The range between two curves, behind the lines; print alone draws it."""

    x: Any
    low: Any
    high: Any
    look: Look


Series = LineSeries | BarSeries | HorizontalLine | BandSeries


@dataclass(frozen=True)
class Axis:
    label: str = ""
    scale: str = "linear"  # or "log"
    limits: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    """by scale, since the page can switch; None is automatic"""
    names: Sequence[str] = ()  # of categories at 0, 1, …
    names_upright: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    name: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    title: str = ""
    legend: str = "row"  # shared with the other panels of the row; or "inside", "below" the panel, "none"
    timed: bool = False  # x is time: the page zooms all such panels together
    horizontal: bool = False  # bars lie, and their categories go down the y axis
    stacked: bool = False


@dataclass(frozen=True)
class PanelRow:
    """Panels side by side with one legend below them; `keys` are further entries of it."""

    panels: Sequence[Panel]
    keys: Sequence[BarSeries] = ()
    legend_columns: int = 4
    width_ratios: Sequence[float] | None = None
    share_y: bool = False


@dataclass(frozen=True)
class FigureSpec:
    rows: Sequence[PanelRow]
    size: tuple[float, float]  # inches, for print
    title: str = ""
