"""The figures in the paper's layout, from the report's descriptions: this chooses rows, names and looks.

A number of the paper is drawn only beside ours, and always says "paper".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from easgd.experiments.paper.scales import Scale
from easgd.report import tables
from easgd.report.data import Line, ReportData
from easgd.report.figure import Axis, BarSeries, FigureSpec, HorizontalLine, LineSeries, Panel, PanelRow
from easgd.report.figures import curve_panel, curves, rows_of, times_to_levels
from easgd.report.levels import speedup, time_to
from easgd.report.render_matplotlib import write_figure
from easgd.report.style import COLOURS, Look, colour_of, look_at
from easgd.report.table import Table
from easgd.report.write import write_curves
from easgd.training.config import Config

PAPER_HEADLINE = (16, 0.21, 11.1)
"""Figure 3's caption: EAMSGD with p = 16 reaches 21 % this many times sooner than MSGD."""


@dataclass
class PaperFigure:
    """What a figure is drawn from, and the folder it is written to."""

    name: str
    title: str
    scale: Scale
    model: ReportData
    out: Path
    tables: list[Table] = field(default_factory=list)
    """what the figure's page shows beside it"""

    def write(self, spec: FigureSpec) -> list[Path]:
        """Write PNG, PDF and every point of every run as CSV; add the tables that every figure has."""
        title = f"{self.title} — {what_was_trained(self.model)}, scale {self.scale.name}"
        paths = write_figure(replace(spec, title=title), self.out / self.name)
        self.tables.append(tables.best(self.model))
        if self.model.against and not any(table.name == "time-to-error" for table in self.tables):
            reached = [time_to(c, level) for c in self.model.choices for level in self.model.levels]
            if any(map(math.isfinite, reached)):
                self.tables.append(tables.times(self.model))
        return [*paths, write_curves(self.model, self.out, self.name)]


def what_was_trained(model: ReportData) -> str:
    """The data set, and that time is virtual where it is."""
    data = " + ".join(sorted({entry.config.data for entry in model.entries if entry.settings is not None}))
    names = {"cifar10": "CIFAR-10", "digits": "digits", "imagenet": "ImageNet"}
    kinds = {"paper-": "generated images", "photos-": "photographs"}
    shown = names.get(data, next((kind for prefix, kind in kinds.items() if data.startswith(prefix)), data))
    return f"{shown}, {model.clock}"


def method_name(config: Config) -> str:
    """The method without p and τ: row titles show those."""
    return config.method_class.name


def restyled(line: Line, name: str, look: Look) -> Line:
    return replace(line, choice=replace(line.choice, label=name), look=look)


def by_method(lines: Sequence[Line], label: Callable[[Config], str] = method_name) -> list[Line]:
    """Give every method its own colour and dash, the same in every figure, and a short name."""
    looks = [look_at(COLOURS.index(colour_of(line.choice) or COLOURS[-1])) for line in lines]
    return [
        restyled(line, label(config), look) if (config := line.choice.config) else replace(line, look=look)
        for line, look in zip(lines, looks, strict=True)
    ]


def in_rows(figure: PaperFigure, by: Sequence[str]) -> list[Path]:
    """Figures 2, 3 and 4: a row per τ or per p; training loss, test loss and test error against time."""
    model = replace(figure.model, lines=by_method(figure.model.lines))
    spec = curves(model, "linear", rows=rows_of(model.lines, by))
    # A method alone may have been watched much longer: the axis ends with the parallel ones, the CSV has all.
    ends = [float(line.mean["time"][-1]) for line in model.lines if not line.choice.sequential]
    last = 1.05 * max(ends, default=math.inf) / model.seconds
    return figure.write(
        replace(spec, rows=[PanelRow([_cut(panel, last) for panel in row.panels]) for row in spec.rows])
    )


def _cut(panel: Panel, last: float) -> Panel:
    """End the time axis at `last`, or where the curves end."""
    longest = max((float(s.x[-1]) for s in panel.series if isinstance(s, LineSeries) and len(s.x)), default=1.0)
    return replace(panel, x=replace(panel.x, limits={"linear": (0, min(1.05 * longest, last))}))


def zoomed(figure: PaperFigure, rows: Sequence[tuple[str, list[Line]]] = (), test_loss: bool = True) -> list[Path]:
    """Figures of the supplement: the last column is the test error again, near its end."""
    return figure.write(_with_zoom(figure.model, rows or [("", by_method(figure.model.lines))], test_loss))


def as_long(figure: PaperFigure, rows: Sequence[tuple[str, list[Line]]] = (), test_loss: bool = True) -> list[Path]:
    """Draw the lines of each row for as long as all of them were watched; CSV and tables have the rest."""
    cut = [(title, _cut_lines(lines)) for title, lines in rows or [("", by_method(figure.model.lines))]]
    # The axes end where the shown part of the lines does.
    shown = replace(figure.model, lines=[line for _, lines in cut for line in lines])
    return figure.write(_with_zoom(shown, cut, test_loss))


def _with_zoom(model: ReportData, rows: Sequence[tuple[str, list[Line]]], test_loss: bool) -> FigureSpec:
    names = ["train_loss", *(["test_loss"] if test_loss else []), "test_error", "test_error"]
    spec = curves(model, "linear", rows, names)
    shown = []
    for row, (_, lines) in zip(spec.rows, rows, strict=True):
        ends = {"linear": zoom([line.mean["test_error"] for line in lines])}
        last = replace(row.panels[-1], y=Axis("test error [%], zoomed", limits=ends))
        shown.append(replace(row, panels=[*row.panels[:-1], last]))
    return replace(spec, rows=shown)


def _cut_lines(lines: Sequence[Line]) -> list[Line]:
    end = 1.02 * min(float(line.mean["time"][-1]) for line in lines)

    def cut(curves: Mapping[str, Any]) -> dict[str, Any]:
        return {name: values[curves["time"] <= end] for name, values in curves.items()}

    return [replace(line, mean=cut(line.mean), seeds=[cut(seed) for seed in line.seeds]) for line in lines]


def zoom(errors: Sequence[Any]) -> tuple[float, float]:
    """Ends of a zoomed axis in per cent: the second half of every curve, up to twice the best error of all."""
    halves = [100 * e[len(e) // 2 :] for e in errors if np.isfinite(e[len(e) // 2 :]).any()]
    if not halves:
        return 0.0, 100.0
    low = min(float(np.nanmin(half)) for half in halves)
    # Otherwise a slow method sets the axis, and the others cannot be told apart.
    high = min(max(float(np.nanmax(half)) for half in halves), 2 * low + 1)
    margin = 0.08 * max(high - low, 1.0)
    return max(0.0, low - margin), high + margin


def side_by_side(figure: PaperFigure) -> list[Path]:
    """The footnotes of section 5: a row for ADMM beside EASGD, and one for the two ways to start."""
    rows: dict[str, list[Line]] = {"ADMM and EASGD": [], "one start or many": []}
    for line in by_method(figure.model.lines, _footnote_name):
        config = line.choice.config
        assert config is not None
        rows["one start or many" if config.method == "eamsgd" else "ADMM and EASGD"].append(
            replace(line, look=look_at(0)) if config.start == "apart" else line
        )
    return as_long(figure, list(rows.items()))


def _footnote_name(config: Config) -> str:
    penalty = "" if config.rho is None else f", ρ = {config.rho:g}"
    return method_name(config) + penalty + (", workers start apart" if config.start == "apart" else "")


def per_rate(figure: PaperFigure) -> list[Path]:
    """Dependence on η: a row per method, a line per learning rate."""
    return as_long(figure, _per_method(figure.model.lines, lambda config: f"η = {config.lr:g}"), test_loss=False)


def per_period(figure: PaperFigure) -> list[Path]:
    """Dependence on τ: a row per method, a line per τ and decay."""

    def name(config: Config) -> str:
        decay = f", γ = {config.gamma:g}" if config.decay == "sqrt" else ""
        rate = f", η = {config.lr:g}" if rates[config.method] > 1 else ""
        return f"τ = {config.period}{rate}{decay}"

    tried = {(line.choice.config.method, line.choice.config.lr) for line in figure.model.lines if line.choice.config}
    rates = Counter(method for method, _ in tried)
    return zoomed(figure, _per_method(figure.model.lines, name), test_loss=False)


def _per_method(lines: Sequence[Line], label: Callable[[Config], str]) -> list[tuple[str, list[Line]]]:
    """Return a row for each method, with a look for each of its lines."""
    groups: dict[str, list[Line]] = {}
    for line in lines:
        assert line.choice.config is not None
        group = groups.setdefault(method_name(line.choice.config), [])
        group.append(restyled(line, label(line.choice.config), look_at(len(group))))
    return list(groups.items())


def time_bars(figure: PaperFigure) -> list[Path]:
    """Time to a test error against p."""

    def name(config: Config) -> str:
        return method_name(config) + ("" if config.workers == 1 else f" p={config.workers} τ={config.period}")

    figure.tables.append(tables.times(figure.model))
    return figure.write(times_to_levels(replace(figure.model, lines=by_method(figure.model.lines, name))))


def speed(figure: PaperFigure) -> list[Path]:
    """The headline: test error against time, and how many times sooner than MSGD."""
    model = figure.model
    errors = curve_panel(model, model.lines, "test_error", "linear")
    means = [series for series in errors.series if isinstance(series, LineSeries) and not series.faint]
    levels = [HorizontalLine(100 * level, Look("0.6", ())) for level in model.levels]
    y = Axis("test error of the center [%]", limits={"linear": (0, None)})
    left = replace(errors, series=[*means, *levels], y=y, legend="inside")
    right = speedup_panel(model, beside_paper=figure.scale.data == "cifar10")
    figure.tables.append(tables.times(model))
    return figure.write(FigureSpec([PanelRow([left, right])], size=(10.5, 4.0)))


def speedup_panel(model: ReportData, beside_paper: bool) -> Panel:
    """Bars of speed-ups, a group per p and a bar per level; the paper's one number hatched beside ours."""
    parallel = [line.choice for line in model.lines if line.choice not in model.against]
    workers = [choice.config.workers if choice.config else None for choice in parallel]
    count = len(model.levels)
    width = 0.84 / (count + 1)
    series = []
    for number, level in enumerate(model.levels):
        gains = [speedup(choice, level, model.against) for choice in parallel]
        # Without a speed-up it was never there, or it was, later than MSGD was watched: no ratio is known.
        missing = ["not reached" if math.isinf(time_to(choice, level)) else "no ratio" for choice in parallel]
        series.append(
            BarSeries(
                [place + (number - count / 2) * width for place in range(len(parallel))],
                [gain.factor if gain else math.nan for gain in gains],
                f"to {100 * level:.3g} %", COLOURS[(number + 1) % len(COLOURS)], 0.92 * width,
                [str(gain).replace(" ", "") if gain else why for gain, why in zip(gains, missing, strict=True)],
            )
        )  # fmt: skip
    paper_p, paper_level, paper_factor = PAPER_HEADLINE
    if beside_paper and paper_p in workers:
        at, texts = workers.index(paper_p) + count / 2 * width, [f"paper {paper_factor}×"]
        label = f"paper: to {paper_level:.0%}"
        series.append(BarSeries([at], [paper_factor], label, "0.3", 0.92 * width, texts, hatched=True))
    highest = max((y for bars in series for y in bars.y if math.isfinite(y)), default=1.0)
    # Room for the texts over the bars.
    y_axis = Axis("times sooner than MSGD", limits={"linear": (0, 1.2 * highest)})
    x_axis = Axis("workers of EAMSGD", names=[f"p = {p}" for p in workers])
    return Panel("speedup", x_axis, y_axis, series, legend="below")
