"""How far apart seeds are: the same settings with several, compared for as long as all of them were watched."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from easgd.experiments.paper.drawing import PaperFigure
from easgd.experiments.paper.repeated import SETTLED, Repeated, repeated
from easgd.report.figure import Axis, BandSeries, FigureSpec, HorizontalLine, LineSeries, Panel, PanelRow, Series
from easgd.report.style import Look, look_at
from easgd.report.table import Cell, Table, cell


def draw(figure: PaperFigure) -> list[Path]:
    """Draw the median over the seeds and the range of all of them; tables of times and speed-ups, the same way."""
    model = figure.model
    known = repeated(model.entries)
    figure.tables += [times(known, model.levels), gains(known, model.levels)]
    series: list[Series] = [HorizontalLine(100 * level, Look("0.6", ())) for level in model.levels]
    for number, one in enumerate(known):
        time, errors = one.errors()
        x, look = time[1:] / model.seconds, look_at(number)  # 0 s is nowhere on this axis
        series.append(BandSeries(x, 100 * errors.min(0)[1:], 100 * errors.max(0)[1:], look))
        seeds = f"{len(one.runs)} seed{'s' if len(one.runs) > 1 else ''}"
        series.append(LineSeries(x, 100 * np.median(errors, 0)[1:], f"{one.name} ({seeds})", look))
    first = min(float(one.runs[0].curves["time"][1]) for one in known) / model.seconds
    last = max(one.watched for one in known) / model.seconds
    x_axis = Axis(model.axis, "log", {"log": (first, 1.05 * last)})
    panel = Panel("errors", x_axis, Axis("test error of the center [%]"), series)
    return figure.write(FigureSpec([PanelRow([panel], legend_columns=2)], size=(8.5, 4.8)))


def times(known: Sequence[Repeated], levels: Sequence[float]) -> Table:
    """Time to each level: the median over the seeds, and the soonest and the latest."""
    columns = [("settings", "method and rate"), ("seeds", "seeds"), ("watched", "watched [s]")]
    columns += [(f"to_{level:g}", f"to {100 * level:.3g} %") for level in levels]
    rows = [
        [cell(one.name), cell(len(one.runs), "d"), cell(one.watched, ".3g"), *(_range(one, x) for x in levels)]
        for one in known
    ]
    note = (
        f"Virtual seconds: median (soonest to latest seed). {SETTLED} “>”: not within the time that all were watched."
    )
    return Table("time-to-error", "Time to a test error over the seeds", columns, rows, note)


def gains(known: Sequence[Repeated], levels: Sequence[float]) -> Table:
    """How many times sooner than MSGD: medians, and the least and the most that two seeds give."""
    alone = [one for one in known if one.sequential]
    columns = [("settings", "sooner than"), ("against", "against")]
    columns += [(f"at_{level:g}", f"to {100 * level:.3g} %") for level in levels]
    rows = [
        [cell(one.name), cell(other.name), *(_gain(one.times(x), other.times(x)) for x in levels)]
        for one in known if not one.sequential for other in alone
    ]  # fmt: skip
    note = "Ratio of the medians (the least and the most that any pair of seeds gives)."
    return Table("sooner", "Times sooner over the seeds", columns, rows, note)


def _range(one: Repeated, level: float) -> Cell:
    times, ended = one.times(level), f"> {one.watched:.3g}"
    middle = median(times)
    if not math.isfinite(middle):
        return None, ended
    latest = f"{times[-1]:.3g}" if math.isfinite(times[-1]) else ended
    return middle, f"{middle:.3g}" + (f" ({times[0]:.3g} to {latest})" if len(times) > 1 else "")


def _gain(own: Sequence[float], theirs: Sequence[float]) -> Cell:
    if not all(map(math.isfinite, (*own, *theirs))):
        return None, "–"
    middle = median(theirs) / median(own)
    ends = f" ({theirs[0] / own[-1]:.1f} to {theirs[-1] / own[0]:.1f})" if len(own) + len(theirs) > 2 else ""
    return middle, f"{middle:.1f}×{ends}"
