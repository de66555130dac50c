"""Beyond the paper: what an error costs in bytes, beside the bytes of data-parallel training."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from easgd.experiments.paper.drawing import PaperFigure
from easgd.report.data import ReportData
from easgd.report.figure import Axis, BarSeries, FigureSpec, HorizontalLine, LineSeries, Panel, PanelRow, Series
from easgd.report.figures import curve_panel
from easgd.report.style import COLOURS, DASHES, Look
from easgd.report.table import Table
from easgd.training.config import Config
from easgd.training.run import Run

DDP = 8.0
"""Bytes per parameter and gradient of data-parallel training: four sent, four received."""


class RunTraffic:
    """What one run exchanged: bytes of all workers together, both ways."""

    def __init__(self, run: Run, look: Look) -> None:
        config, self.run, self.look = run.config, run, look
        packed = f" {config.compression}" if config.compression != "none" else ""
        decay = f" γ={config.gamma:g}" if config.decay == "sqrt" else ""
        self.label = f"{config.label}{packed}{decay}"
        self.curves = run.curves()
        self.parameters = sum(tensor.numel() for tensor in run.center.values())
        self.gradients, self.bytes = int(self.curves["steps"][-1]), int(self.curves["bytes"][-1])
        # per parameter and gradient
        self.relative = self.bytes / (self.gradients * self.parameters) if self.gradients else math.nan


def against_bytes(figure: PaperFigure) -> list[Path]:
    """Test error against the bytes of all exchanges, and bytes per parameter and gradient beside DDP's eight."""
    runs = [Run(line.choice.runs[0].folder.path) for line in figure.model.lines if not line.choice.sequential]
    traffics = [RunTraffic(run, _look(run.config, place)) for place, run in enumerate(sorted(runs, key=_order))]
    panels = [_errors(figure.model, traffics), _relative(traffics)]
    figure.tables.append(_table(traffics))
    return figure.write(FigureSpec([PanelRow(panels, legend_columns=3, width_ratios=(3, 2))], size=(10.5, 5.6)))


def time_and_bytes(figure: PaperFigure) -> list[Path]:
    """Test error of the same runs twice: against time, and against the bytes of all exchanges."""
    model = figure.model
    traffics = [RunTraffic(Run(line.choice.runs[0].folder.path), line.look) for line in model.lines]
    against_time = curve_panel(model, model.lines, "test_error", "linear")
    against_traffic = replace(_errors(model, traffics), legend="none")
    figure.tables.append(_table(traffics))
    return figure.write(FigureSpec([PanelRow([against_time, against_traffic], legend_columns=3)], size=(10.5, 5.0)))


def _order(run: Run) -> tuple[str, int, int, bool]:
    config = run.config
    return config.method, -(config.workers or 1), config.steps_between, config.compression != "none"


def _look(config: Config, place: int) -> Look:
    """A colour of its own; solid for EAMSGD, dashed for EASGD, dotted for what is packed."""
    dash = 2 if config.compression != "none" else 0 if config.method == "eamsgd" else 1
    return Look(COLOURS[1 + place % (len(COLOURS) - 1)], DASHES[dash])


def _errors(model: ReportData, traffics: list[RunTraffic]) -> Panel:
    """Curves of the parallel methods; a method alone is drawn as if every gradient had been sent, as DDP does."""
    series: list[Series] = []
    for traffic in traffics:
        sent = traffic.curves["bytes"] > 0  # zero has no place on a logarithmic axis
        error = 100 * traffic.curves["test_error"][sent]
        series.append(LineSeries(traffic.curves["bytes"][sent], error, traffic.label, traffic.look))
    for line in model.lines:
        if line.choice.sequential:
            curves = line.choice.runs[0].curves
            every, error = DDP * traffics[0].parameters * curves["steps"], 100 * curves["test_error"]
            label = f"{line.label}, if every gradient were sent (DDP)"
            series.append(LineSeries(every[1:], error[1:], label, Look("0.3", ())))
            series.append(HorizontalLine(float(error.min()), Look("0.3", DASHES[1]), f"{line.label}: its best"))
    x = Axis("bytes exchanged by all workers, both ways", "log")
    return Panel("errors", x, Axis("test error of the center [%]"), series)


def _relative(traffics: list[RunTraffic]) -> Panel:
    shown = [("DDP (reference)", DDP, "0.6"), *((t.label, t.relative, t.look.colour) for t in traffics)]
    bars = [
        BarSeries([place], [value], label, colour, texts=[f"{value:.2g}"])
        for place, (label, value, colour) in enumerate(shown)
    ]
    # Room for the texts beside the bars. The legend has the methods already: here they are on the axis.
    values = [value for _, value, _ in shown if value > 0]
    x = Axis("bytes per parameter and gradient", "log", {"log": (min(values) / 2, 2.5 * max(values))})
    return Panel("relative", x, Axis(names=[label for label, _, _ in shown]), bars, legend="none", horizontal=True)


def _table(traffics: list[RunTraffic]) -> Table:
    columns = ["method", "gradients", "bytes", "bytes_per_parameter_and_gradient", "ddp_ratio", "best_error"]
    rows = [
        [t.label, t.gradients, t.bytes, t.relative, DDP / t.relative if t.bytes else math.inf, t.run.best_error]
        for t in traffics
    ]
    shown = [[(value, f"{value:.4g}" if isinstance(value, float) else str(value)) for value in row] for row in rows]
    title = "Bytes (DDP: 4n sent and 4n received per gradient)"
    return Table("bytes-per-gradient", title, [(c, c.replace("_", " ")) for c in columns], shown)
