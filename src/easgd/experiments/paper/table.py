"""The supplement's table of the wallclock time: the paper's numbers, the simulator's, and two real workers here.

The simulated part draws no real gradients: its times do not depend on them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from easgd.engines.simulate import simulate
from easgd.experiments.paper.scales import Scale
from easgd.methods import EASGD, SGD, Downpour, Method
from easgd.report import style
from easgd.report.figure import Axis, BarSeries, FigureSpec, Panel, PanelRow
from easgd.report.render_matplotlib import write_figure
from easgd.report.table import Table, cell, write_rows
from easgd.training.run import Run

Row = tuple[str, str, int, int, float, float, float]
"""source, experiment, τ, p, seconds of compute, data, communication"""

STEPS = {"cifar": 400, "imagenet": 1024}
PARTS = {name: style.PARTS[name] for name in ("compute", "data", "communication")}
"""The paper counts waiting as communication."""
NOTE = (
    "Rows marked “paper” are the paper's own numbers. τ = 1 is DOWNPOUR (p = 1: SGD), τ = 10 is EASGD. Rows marked "
    "“measured” are two runs one after the other on this machine: what else ran on it shows in their compute time, "
    "which τ does not change. Compare the shares of communication, not the sums."
)

# (experiment, τ, p) -> compute, data, communication as the paper prints them; τ = 1 is DOWNPOUR, τ = 10 EASGD.
PAPER: dict[tuple[str, int, int], tuple[int, int, int]] = {
    ("cifar", 1, 1): (12, 1, 0), ("cifar", 1, 4): (11, 2, 3), ("cifar", 1, 8): (11, 2, 5), ("cifar", 1, 16): (11, 2, 9),
    ("cifar", 10, 4): (11, 2, 1), ("cifar", 10, 8): (11, 2, 1), ("cifar", 10, 16): (12, 2, 1),
    ("imagenet", 1, 1): (1248, 20, 0), ("imagenet", 1, 4): (1323, 24, 173), ("imagenet", 1, 8): (1239, 61, 284),
    ("imagenet", 10, 4): (1254, 58, 7), ("imagenet", 10, 8): (1266, 84, 11),
}  # fmt: skip


def simulated(experiment: str, tau: int, p: int, steps: int) -> Row:
    """The same cell on the virtual clock of the preset, scaled to the paper's number of batches."""
    method: Method = SGD() if p == 1 else Downpour(period=1) if tau == 1 else EASGD(period=tau)
    run = simulate(
        lambda x, worker, step: torch.zeros_like(x), torch.zeros(1), method, lr=0.0, workers=p, steps=steps * p,
        schedule="async", cost=f"paper-{experiment}",
    )  # fmt: skip
    split = run.breakdown()
    per = STEPS[experiment] / split.steps
    return "simulated", experiment, tau, p, split.compute * per, split.data * per, split.communication * per


def measured(run: Run) -> Row:
    """Two real workers of this machine, scaled to 400 batches."""
    split, config = run.breakdown(), run.config
    per = STEPS["cifar"] / split.steps
    name = f"{config.data},\nthis machine"
    times = split.compute * per, split.data * per, split.communication * per
    return "measured", name, config.steps_between, config.workers or 1, *times


def rows_of(scale: Scale, runs: Sequence[Run]) -> list[Row]:
    """Every cell: paper, simulated, then what was measured here."""
    result: list[Row] = []
    for (experiment, tau, p), parts in PAPER.items():
        steps = 100 if scale.name == "smoke" else STEPS[experiment]
        compute, data, communication = map(float, parts)
        result.append(("paper", experiment, tau, p, compute, data, communication))
        result.append(simulated(experiment, tau, p, steps))
    return [*result, *map(measured, runs)]


def draw(scale: Scale, runs: Sequence[Run], out: Path, name: str) -> tuple[list[Path], Table]:
    """Bars in pairs, paper beside simulated, and the real workers in a panel of their own; return files and table."""
    rows = rows_of(scale, runs)
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[1], []).append(row)
    paths = write_figure(_figure(groups), out / name)
    rows = [(row[0], row[1].replace("\n", " "), *row[2:]) for row in rows]
    header = ["source", "experiment", "period", "workers", *PARTS]
    paths.append(write_rows(out / f"{name}.csv", header, rows))
    shown: list[list[Any]] = [[*((v, str(v)) for v in row[:4]), *(cell(v, ".4g") for v in row[4:])] for row in rows]
    columns = [(h, h) for h in header]
    return paths, Table("time-breakdown", "Seconds per 400 (CIFAR) or 1024 (ImageNet) batches", columns, shown, NOTE)


def _figure(groups: dict[str, list[Row]]) -> FigureSpec:
    parts = [BarSeries([], [], part, colour) for part, colour in PARTS.items()]
    sources = [
        BarSeries([], [], "filled: ours", "0.6"),
        BarSeries([], [], "hatched: the paper's numbers", "0.3", hatched=True),
    ]
    widths = [len(group) + 1 for group in groups.values()]
    panels = [_panel(experiment, group) for experiment, group in groups.items()]
    row = PanelRow(panels, keys=[*parts, *sources], legend_columns=5, width_ratios=widths)
    return FigureSpec([row], size=(12.0, 4.6))


def _panel(experiment: str, group: Sequence[Row]) -> Panel:
    bars = [
        BarSeries([place], [seconds], part, colour, hatched=source == "paper")
        for place, (source, _, _, _, *parts) in enumerate(group)
        for (part, colour), seconds in zip(PARTS.items(), parts, strict=True)
    ]
    names = Axis(names=[f"{row[0]}\nτ={row[2]} p={row[3]}" for row in group], names_upright=True)
    y = Axis(f"seconds per {STEPS.get(experiment, STEPS['cifar'])} batches of a worker")
    return Panel("time", names, y, bars, experiment, legend="none", stacked=True)
