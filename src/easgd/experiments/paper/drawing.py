"""The figures in the paper's layout. Curves and bars are the report's; this chooses rows, names and looks.

A number of the paper is drawn only beside ours, and always says "paper".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from easgd.experiments.paper.scales import Scale
from easgd.report import tables
from easgd.report.data import Line, ReportData
from easgd.report.figures import STYLE, bars, curves, rows_of, save
from easgd.report.levels import speedup, time_to
from easgd.report.style import COLOURS, DASHES, Look, colour_of
from easgd.report.table import Table
from easgd.report.write import write_curves
from easgd.training.config import Config

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAPER_HEADLINE = (16, 0.21, 11.1)
"""Figure 3's caption: EAMSGD with p = 16 reaches 21 % this many times sooner than MSGD."""


@dataclass
class Sketch:
    """What a figure is drawn from, and where it goes."""

    name: str
    title: str
    scale: Scale
    model: ReportData
    out: Path
    tables: list[Table]
    """what the figure's page shows beside it"""

    def heading(self) -> str:
        """The title over a figure; it says what was trained."""
        return f"{self.title} — {what_was_trained(self.model)}, scale {self.scale.name}"


def what_was_trained(model: ReportData) -> str:
    """The data set, and that time is virtual where it is."""
    data = " + ".join(sorted({entry.config.data for entry in model.entries if entry.settings is not None}))
    names = {"cifar10": "CIFAR-10", "digits": "digits", "imagenet": "ImageNet"}
    shown = names.get(data, "generated images" if data.startswith("paper-") else data)
    return f"{shown}, {model.clock}"


def method_name(config: Config) -> str:
    """The method alone: what tells rows apart stands in their titles."""
    return config.method_class.name


def named(line: Line, name: str) -> Line:
    """A line under another name; its numbers stay."""
    return replace(line, choice=replace(line.choice, label=name))


def by_method(lines: Sequence[Line], label: Callable[[Config], str] = method_name) -> list[Line]:
    """Give every method its own colour and dash, the same in every figure, and a short name."""
    result = []
    for line in lines:
        config = line.choice.config
        place = COLOURS.index(colour_of(line.choice) or COLOURS[-1])
        look = Look(COLOURS[place], DASHES[place % len(DASHES)])
        result.append(replace(named(line, label(config) if config else line.label), look=look))
    return result


def in_rows(sketch: Sketch, by: Sequence[str]) -> list[Path]:
    """Figures 2, 3 and 4: a row per τ or per p; training loss, test loss and test error against time."""
    model = replace(sketch.model, lines=by_method(sketch.model.lines))
    figure = curves(model, "linear", rows=rows_of(model.lines, by))
    # A method alone may have been watched much longer: the axis ends with the parallel ones, the CSV has all.
    ends = [float(line.mean["time"][-1]) for line in model.lines if not line.choice.sequential]
    for axes in figure.axes:
        axes.set_xlim(0, min(axes.get_xlim()[1], 1.05 * max(ends, default=math.inf) / model.seconds))
    return finish(sketch, figure)


def zoomed(sketch: Sketch, rows: Sequence[tuple[str, list[Line]]] | None = None, test_loss: bool = True) -> list[Path]:
    """Figures of the supplement: the last column is the test error again, near its end."""
    names = ["train_loss", *(["test_loss"] if test_loss else []), "test_error", "test_error"]
    shown = list(rows) if rows is not None else [("", by_method(sketch.model.lines))]
    figure = curves(sketch.model, "linear", rows=shown, names=names)
    for number, (_, lines) in enumerate(shown):
        axes = figure.axes[(number + 1) * len(names) - 1]
        axes.set_ylim(*zoom([line.mean["test_error"] for line in lines]))
        axes.set_ylabel("test error [%], zoomed")
    return finish(sketch, figure)


def zoom(errors: Sequence[Any]) -> tuple[float, float]:
    """Ends of a zoomed axis in per cent: the second half of every curve, up to twice the best error of all."""
    halves = [100 * e[len(e) // 2 :] for e in errors if np.isfinite(e[len(e) // 2 :]).any()]
    if not halves:
        return 0.0, 100.0
    low = min(float(np.nanmin(half)) for half in halves)
    # A method that lags behind would take the axis for itself.
    high = min(max(float(np.nanmax(half)) for half in halves), 2 * low + 1)
    margin = 0.08 * max(high - low, 1.0)
    return max(0.0, low - margin), high + margin


def per_rate(sketch: Sketch) -> list[Path]:
    """Dependence on η: a row per method, a line per learning rate."""
    return _per_method(sketch, lambda config: f"η = {config.lr:g}")


def per_period(sketch: Sketch) -> list[Path]:
    """Dependence on τ: a row per method, a line per τ and decay."""

    def name(config: Config) -> str:
        decay = f", γ = {config.gamma:g}" if config.decay == "sqrt" else ""
        rate = f", η = {config.lr:g}" if rates[config.method] > 1 else ""
        return f"τ = {config.period}{rate}{decay}"

    tried = {(line.choice.config.method, line.choice.config.lr) for line in sketch.model.lines if line.choice.config}
    rates = Counter(method for method, _ in tried)
    return _per_method(sketch, name)


def _per_method(sketch: Sketch, label: Callable[[Config], str]) -> list[Path]:
    groups: dict[str, list[Line]] = {}
    for line in sketch.model.lines:
        assert line.choice.config is not None
        group = groups.setdefault(method_name(line.choice.config), [])
        look = Look(COLOURS[len(group) % len(COLOURS)], DASHES[len(group) % len(DASHES)])
        group.append(replace(named(line, label(line.choice.config)), look=look))
    return zoomed(sketch, list(groups.items()), test_loss=False)


def time_bars(sketch: Sketch) -> list[Path]:
    """Time to a test error against p."""

    def name(config: Config) -> str:
        return method_name(config) + ("" if config.workers == 1 else f" p={config.workers} τ={config.period}")

    model = replace(sketch.model, lines=by_method(sketch.model.lines, name))
    sketch.tables.append(tables.times(sketch.model))
    return finish(sketch, bars(model))


def speed(sketch: Sketch) -> list[Path]:
    """The headline: test error against time, and how many times sooner than MSGD."""
    from matplotlib.figure import Figure

    model = sketch.model
    figure = Figure(figsize=(10.5, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2)
    for line in model.lines:
        style: dict[str, Any] = {"color": line.look.colour, "linestyle": line.look.matplotlib}
        time, error = line.mean["time"] / model.seconds, 100 * line.mean["test_error"]
        left.plot(time, error, label=line.label, linewidth=1.6, **style)
    for level in model.levels:
        left.axhline(100 * level, color="0.6", linewidth=0.7)
    left.set(xlabel=model.axis, ylabel="test error of the center [%]", xlim=(0, None), ylim=(0, None))
    left.legend(frameon=False)
    left.grid(alpha=0.25, linewidth=0.6)
    _speedup_bars(right, model, beside_paper=sketch.scale.data == "cifar10")
    sketch.tables.append(tables.times(model))
    return finish(sketch, figure)


def _speedup_bars(axes: Axes, model: ReportData, beside_paper: bool) -> None:
    """Bars of speed-ups, a group per p and a bar per level; the paper's one number hatched beside ours."""
    parallel = [line for line in model.lines if line.choice not in model.against]
    workers = [line.choice.config.workers if line.choice.config else None for line in parallel]
    paper_p, paper_level, paper_factor = PAPER_HEADLINE
    shown = list(model.levels)
    width = 0.84 / (len(shown) + 1)
    for number, level in enumerate(shown):
        gains = [speedup(line.choice, level, model.against) for line in parallel]
        at = [place + (number - len(shown) / 2) * width for place in range(len(parallel))]
        heights = [gain.factor if gain else math.nan for gain in gains]
        colour = COLOURS[(number + 1) % len(COLOURS)]
        axes.bar(at, heights, 0.92 * width, color=colour, label=f"to {100 * level:.3g} %")
        for x, line, gain in zip(at, parallel, gains, strict=True):
            # Without a speed-up it was never there, or it was, later than MSGD was watched: no ratio is known.
            missing = "not reached" if math.isinf(time_to(line.choice, level)) else "no ratio"
            text, y = (str(gain).replace(" ", ""), gain.factor) if gain else (missing, 0.0)
            axes.annotate(text, (x, y), (0, 3), textcoords="offset points", ha="center", fontsize=7, rotation=90)
    if beside_paper and paper_p in workers:
        at_paper = workers.index(paper_p) + len(shown) / 2 * width
        label = f"paper: to {paper_level:.0%}"
        axes.bar(at_paper, paper_factor, 0.92 * width, color="white", edgecolor="0.3", hatch="///", label=label)
        text = f"paper {paper_factor}×"
        axes.annotate(text, (at_paper, paper_factor), (0, 3), textcoords="offset points", ha="center", fontsize=7)
    axes.set_xticks(range(len(parallel)), [f"p = {p}" for p in workers])
    axes.set(xlabel="workers of EAMSGD", ylabel="times sooner than MSGD")
    axes.set_xlim(-0.6, len(parallel) - 0.4)
    axes.set_ylim(0, 1.15 * axes.get_ylim()[1])
    axes.legend(frameon=False, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.14), ncols=len(shown) + 1)
    axes.grid(axis="y", alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)


def finish(sketch: Sketch, figure: Figure) -> list[Path]:
    """Title, PNG, PDF, and every point of every run as CSV."""
    from matplotlib import rc_context

    figure.suptitle(sketch.heading(), fontsize=10)
    with rc_context(STYLE):
        paths = save(figure, sketch.out / sketch.name)
    sketch.tables.append(tables.best(sketch.model))
    if sketch.model.against and not any(table.name == "time-to-error" for table in sketch.tables):
        reached = [time_to(c, level) for c in sketch.model.choices for level in sketch.model.levels]
        if any(map(math.isfinite, reached)):
            sketch.tables.append(tables.times(sketch.model))
    return [*paths, write_curves(sketch.model, sketch.out, sketch.name)]
