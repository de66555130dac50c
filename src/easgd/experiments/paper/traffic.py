"""Beyond the paper: what an error costs in bytes, beside the bytes of data-parallel training."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from easgd.experiments.paper.drawing import Sketch, finish
from easgd.report.data import ReportData
from easgd.report.style import COLOURS, DASHES, Look
from easgd.report.table import Table
from easgd.training.config import Config
from easgd.training.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DDP = 8.0
"""Bytes per parameter and gradient of data-parallel training: four sent, four received."""


@dataclass(frozen=True)
class Traffic:
    """What one run exchanged."""

    run: Run
    look: Look

    @property
    def label(self) -> str:
        """Method, p, τ, and what else was done to exchange less."""
        config: Config = self.run.config
        packed = " int8" if config.compression == "int8" else ""
        decay = f" γ={config.gamma:g}" if config.decay == "sqrt" else ""
        return f"{config.label}{packed}{decay}"

    @property
    def parameters(self) -> int:
        """The network's parameters."""
        return sum(tensor.numel() for tensor in self.run.center.values())

    @property
    def gradients(self) -> int:
        """Gradients of all workers together."""
        return int(self.run.curves()["steps"][-1])

    @property
    def bytes(self) -> int:
        """Bytes of all workers together, both ways."""
        return int(self.run.curves()["bytes"][-1])

    @property
    def per_gradient(self) -> float:
        """Bytes per parameter and gradient."""
        return self.bytes / (self.gradients * self.parameters) if self.gradients else math.nan


def against_bytes(sketch: Sketch) -> list[Path]:
    """Test error against the bytes of all exchanges, and bytes per parameter and gradient beside DDP's eight."""
    from matplotlib.figure import Figure

    runs = [Run(line.choice.runs[0].folder.path) for line in sketch.model.lines if not line.choice.sequential]
    traffics = [Traffic(run, _look(run.config, place)) for place, run in enumerate(sorted(runs, key=_order))]
    figure = Figure(figsize=(10.5, 5.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    _errors(left, sketch.model, traffics)
    _shares(right, traffics)
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    sketch.tables.append(_table(traffics))
    return finish(sketch, figure)


def _order(run: Run) -> tuple[str, int, int, bool]:
    config = run.config
    return config.method, -(config.workers or 1), config.period or 1, config.compression != "none"


def _look(config: Config, place: int) -> Look:
    """A colour of its own; solid for EAMSGD, dashed for EASGD, dotted for what is packed."""
    dash = 2 if config.compression != "none" else 0 if config.method == "eamsgd" else 1
    return Look(COLOURS[1 + place % (len(COLOURS) - 1)], DASHES[dash])


def _errors(axes: Axes, model: ReportData, traffics: list[Traffic]) -> None:
    """Curves of the parallel methods; a method alone is drawn as if every gradient had been sent, as DDP does."""
    for traffic in traffics:
        curves, look = traffic.run.curves(), traffic.look
        sent = curves["bytes"] > 0
        error = 100 * curves["test_error"][sent]
        axes.plot(curves["bytes"][sent], error, label=traffic.label, color=look.colour, linestyle=look.matplotlib)
    for line in model.lines:
        if line.choice.sequential:
            curves = line.choice.runs[0].curves
            every = DDP * traffics[0].parameters * curves["steps"]
            error = 100 * curves["test_error"]
            label = f"{line.label}, if every gradient were sent (DDP)"
            axes.plot(every[1:], error[1:], color="0.3", label=label)
            axes.axhline(error.min(), color="0.3", linewidth=0.8, linestyle="--", label=f"{line.label}: its best")
    axes.set(xscale="log", xlabel="bytes exchanged by all workers, both ways", ylabel="test error of the center [%]")
    axes.grid(alpha=0.25, linewidth=0.6)


def _shares(axes: Axes, traffics: list[Traffic]) -> None:
    names = ["DDP (reference)", *(traffic.label for traffic in traffics)]
    widths = [DDP, *(traffic.per_gradient for traffic in traffics)]
    axes.barh(names, widths, color=["0.6", *(traffic.look.colour for traffic in traffics)])
    for place, width in enumerate(widths):
        axes.text(width, place, f" {width:.2g}", va="center", fontsize=8)
    axes.set(xscale="log", xlabel="bytes per parameter and gradient")
    axes.invert_yaxis()
    axes.margins(x=0.15)


def _table(traffics: list[Traffic]) -> Table:
    columns = ["method", "gradients", "bytes", "bytes_per_parameter_and_gradient", "ddp_ratio", "best_error"]
    rows = [
        [t.label, t.gradients, t.bytes, t.per_gradient, DDP / t.per_gradient if t.bytes else math.inf, t.run.best_error]
        for t in traffics
    ]
    shown = [[(value, f"{value:.4g}" if isinstance(value, float) else str(value)) for value in row] for row in rows]
    title = "Bytes (DDP: 4n sent and 4n received per gradient)"
    return Table("bytes-per-gradient", title, [(c, c.replace("_", " ")) for c in columns], shown)
