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
    """A curve. `faint` marks one seed's own curve behind the mean: it is thin and has no legend entry."""

    x: Any
    y: Any
    label: str
    look: Look
    faint: bool = False
    method: int | None = None
    """number of the method in the page's legend"""


@dataclass(frozen=True)
class BarSeries:
    """Bars of one colour, centered at the places `x` of the category axis; a height that is not finite draws no bar."""

    x: Sequence[float]
    y: Sequence[float]
    label: str
    colour: str
    width: float = 0.8
    texts: Sequence[str] = ()
    """one per bar, beside its end; at the foot of the axis where there is no bar"""
    hatched: bool = False
    key: str = ""
    """legend text where it is not the label"""
    method: int | None = None


@dataclass(frozen=True)
class Rule:
    """A horizontal line through the whole panel."""

    y: float
    look: Look
    label: str = ""


Series = LineSeries | BarSeries | Rule


@dataclass(frozen=True)
class Axis:
    """Label, scale and limits of an axis; `names` makes it an axis of categories at 0, 1, …"""

    label: str = ""
    scale: str = "linear"
    limits: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    """by scale, since the page can switch; None is automatic"""
    names: Sequence[str] = ()
    names_upright: bool = False


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    name: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    title: str = ""
    legend: str = "row"
    """where: "row" (shared by the row of panels), "inside" or "below" the panel, or "none": nowhere"""
    timed: bool = False
    """whether x is time: the page zooms all such panels together"""
    horizontal: bool = False
    """bars lie, and their categories go down the y axis"""
    stacked: bool = False

    @property
    def heading(self) -> str:
        return self.title or self.y.label


@dataclass(frozen=True)
class Row:
    """Panels side by side with one legend below them. `keys` are further legend entries."""

    panels: Sequence[Panel]
    keys: Sequence[BarSeries] = ()
    legend_columns: int = 4
    width_ratios: Sequence[float] | None = None
    share_y: bool = False


@dataclass(frozen=True)
class FigureSpec:
    """Rows of panels, and the size on paper in inches."""

    rows: Sequence[Row]
    size: tuple[float, float]
    title: str = ""
