"""Speed-ups for every pair of learning rates, and those that the paper's rule of selection gives.

The paper compares each method at the rate with the smallest test error that it reached, and does not say how long it
trained. A small rate of MSGD gets there late, and so the speed-up depends on the budget. Here are all pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from easgd.experiments.paper.drawing import PaperFigure
from easgd.experiments.paper.repeated import SETTLED, Repeated, repeated
from easgd.report.figure import Axis, BarSeries, FigureSpec, HorizontalLine, LineSeries, Panel, PanelRow
from easgd.report.style import COLOURS, Look
from easgd.report.table import Cell, Table, cell, percent

BUDGETS = (300.0, 600.0, 1000.0)
"""Virtual seconds for which the paper's rule is applied."""
GREYS = ("#000000", "#5a5a5a", "#8c8c8c", "#b4b4b4")
"""Of MSGD's rates, the largest first; the workers' have colours."""


def sooner(one: Repeated, alone: Repeated, level: float) -> Cell:
    """Return how many times sooner one is at a level, at least so many times where the other never got there."""
    own, theirs = one.time_to(level), alone.time_to(level)
    if math.isinf(own):
        return None, "–"
    bound = math.isinf(theirs)
    factor = (alone.watched if bound else theirs) / own
    return (None, "–") if bound and factor < 1 else (factor, f"{'> ' if bound else ''}{factor:.1f}×")


def draw(figure: PaperFigure) -> list[Path]:
    """Draw test errors over a logarithmic time axis, and the speed-ups against each rate of MSGD."""
    model = figure.model
    known = repeated(model.entries)
    alone, parallel = [one for one in known if one.sequential], [one for one in known if not one.sequential]
    # The paper's rule is about its own spring: the level must be one that sixteen with it came to.
    own = [one for one in parallel if one.config.workers == 16 and one.papers]
    level = telling(model.levels, parallel, alone, own)
    figure.tables += [times(known, model.levels), alike(known, model.levels), matrix(parallel, alone, model.levels)]
    if figure.scale.data == "cifar10":  # digits are learned in a few of the virtual seconds that `BUDGETS` has
        figure.tables.append(rule(parallel, alone, level))
    looks = [Look(GREYS[k % len(GREYS)], (9, 4)) for k in range(len(alone))]
    looks += [Look(COLOURS[1 + k % (len(COLOURS) - 1)], ()) for k in range(len(parallel))]
    panels = [_curves(model.clock, known, looks, level), _bars(parallel, alone, looks[len(alone) :], level)]
    return figure.write(FigureSpec([PanelRow(panels, legend_columns=3)], size=(11.5, 4.6)))


def telling(levels: Sequence[float], *sides: Sequence[Repeated]) -> float:
    """Return the hardest level that two of each side have come to, or as many as ever did."""

    def there(level: float) -> int:
        return sum(min(2, sum(math.isfinite(one.time_to(level)) for one in side)) for side in sides)

    return max(levels, key=lambda level: (there(level), -level))


def times(known: Sequence[Repeated], levels: Sequence[float]) -> Table:
    """Time to each level, a row for each rate."""
    columns = [("settings", "method and rate"), ("interval", "measured every [s]")]
    columns += [(f"to_{level:g}", f"to {100 * level:.3g} %") for level in levels] + [("best", "best error")]
    rows = [
        [
            cell(one.name), cell(one.interval, ".3g"), *(_time(one, level) for level in levels),
            percent(one.best),
        ]
        for one in known
    ]  # fmt: skip
    note = f"Virtual seconds. {SETTLED} “>”: not within the time that the run was watched."
    return Table("time-to-error", "Time to a test error at every rate", columns, rows, note)


def alike(known: Sequence[Repeated], levels: Sequence[float]) -> Table:
    """Time to each level where all are measured as seldom as the one that is measured most seldom."""
    every = max(round(one.interval, 1) for one in known)
    columns = [("settings", "method and rate"), *((f"to_{level:g}", f"to {100 * level:.3g} %") for level in levels)]
    rows: list[list[Cell]] = []
    for one in known:
        found = [one.time_to(level, every) for level in levels]
        rows.append([cell(one.name), *((t, f"{t:.0f}") if math.isfinite(t) else (None, "–") for t in found)])
    note = f"Virtual seconds. {SETTLED} Of every run the measurements nearest to each {every:g} s count."
    return Table("one-interval", f"The same, all measured every {every:g} s", columns, rows, note)


def _time(one: Repeated, level: float) -> Cell:
    time, once = one.time_to(level), one.once(level)
    if math.isfinite(time):
        return time, f"{time:.0f}"
    return None, f"> {one.watched:.0f}" + (f" (once at {once:.0f})" if math.isfinite(once) else "")


def matrix(parallel: Sequence[Repeated], alone: Sequence[Repeated], levels: Sequence[float]) -> Table:
    """Speed-ups of every pair, at the levels that some of them came to."""
    columns = [("level", "to"), ("settings", "sooner than")]
    columns += [(f"against_{one.config.lr:g}", one.name) for one in alone]
    rows: list[list[Cell]] = []
    for level in levels:
        for one in parallel:
            if math.isfinite(one.time_to(level)):
                gains = [sooner(one, other, level) for other in alone]
                rows.append([(level, f"{100 * level:.3g} %"), cell(one.name), *gains])
    note = "“>”: MSGD was not there when its run ended. “–”: no bound is known."
    return Table("pairs", "Every pair of rates", columns, rows, note)


def rule(parallel: Sequence[Repeated], alone: Sequence[Repeated], level: float) -> Table:
    """Return which rates have the smallest error within a budget, and the speed-up of that pair."""
    columns = [("budget", "budget [s]"), ("msgd", "MSGD"), ("msgd_time", "its time [s]")]
    sixteen = [one for one in parallel if one.config.workers == 16]
    springs = [("paper", [one for one in sixteen if one.papers], "α = 0.9/p"), ("any", sixteen, "any α")]
    springs = [spring for spring in springs if spring[1]] if alone else []
    for key, _, words in springs:
        columns += [(f"eamsgd_{key}", f"EAMSGD p = 16, {words}"), (f"time_{key}", "its time [s]")]
        columns.append((f"sooner_{key}", "sooner"))
    rows: list[list[Cell]] = []
    for budget in BUDGETS if springs else ():
        theirs = _chosen(alone, budget)
        row = [cell(budget, ".0f"), _picked(theirs, budget), _time(theirs, level)]
        for _, known, _ in springs:
            ours = _chosen(known, budget)
            row += [_picked(ours, budget), _time(ours, level), sooner(ours, theirs, level)]
        rows.append(row)
    note = (
        f"The rate with the smallest test error within the budget, and the pair's speed-up to {100 * level:.3g} %. A "
        "run that ended before the budget counts as far as it went; its entry says so."
    )
    return Table("rule", "The paper's rule at three budgets", columns, rows, note)


def _chosen(known: Sequence[Repeated], budget: float) -> Repeated:
    return min(known, key=lambda one: one.best_within(budget))


def _picked(one: Repeated, budget: float) -> Cell:
    early = f", watched {one.watched:.0f} s" if one.watched < budget - one.interval else ""
    return one.name, f"{one.rate} ({100 * one.best_within(budget):.1f} %{early})"


def _curves(clock: str, known: Sequence[Repeated], looks: Sequence[Look], level: float) -> Panel:
    series: list[LineSeries | HorizontalLine] = []
    for one, look in zip(known, looks, strict=True):
        time, errors = one.errors()
        series.append(LineSeries(time[1:], 100 * np.median(errors, 0)[1:], one.name, look))  # 0 s is off this axis
    series.append(HorizontalLine(100 * level, Look("0.6", ())))
    first = min(float(one.errors()[0][1]) for one in known)
    last = max(one.watched for one in known)
    x = Axis(f"{clock} [s]", "log", {"log": (first, 1.05 * last)})
    y = Axis("test error of the center [%]", limits={"linear": (0, None)})
    return Panel("errors", x, y, series)


def _bars(parallel: Sequence[Repeated], alone: Sequence[Repeated], looks: Sequence[Look], level: float) -> Panel:
    """Return a group of bars for each rate of MSGD; what never came to the level leaves no gap in it."""
    there = [pair for pair in zip(parallel, looks, strict=True) if math.isfinite(pair[0].time_to(level))]
    count, series = len(there), []
    width = 0.84 / max(count, 1)
    for number, (one, look) in enumerate(there):
        cells = [sooner(one, other, level) for other in alone]
        places = [place + (number - (count - 1) / 2) * width for place in range(len(alone))]
        heights = [math.nan if value is None else float(value) for value, _ in cells]
        texts = ["" if value is None else text.replace(" ", "") for value, text in cells]
        series.append(BarSeries(places, heights, one.name, look.colour, 0.92 * width, texts))
    highest = max((y for bars in series for y in bars.y if math.isfinite(y)), default=1.0)
    y = Axis(f"times sooner at {100 * level:.3g} %", limits={"linear": (0, 1.2 * highest)})
    names = [f"η = {one.config.lr:g}" for one in alone]
    return Panel("pairs", Axis("than MSGD with", names=names), y, series, legend="none")
