"""How far a run scales: steps a second over the number of workers, by arithmetic and on the simulator's clock.

The example: 9 million parameters, steps of half a second, machines of eight workers on links of 1 Gbit/s, τ = 20.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from easgd.engines.simulate import CostModel, Machines, Simulation
from easgd.errors import refuse
from easgd.experiments.theory.common import LINES, figure, progress, write
from easgd.methods import EASGD
from easgd.theory import Cluster, Scale
from easgd.theory.checks import count

EACH = 8  # workers of a machine
PERIOD, DELAY = 20, 2
WAYS = {
    "one shard": (False, 1, PERIOD, 1),
    "8 shards": (False, 8, PERIOD, 1),
    "a center per machine, 8 shards": (True, 8, PERIOD // 2, 2),
}  # levels, shards, τ, T


@dataclass(frozen=True)
class Point:
    """Steps a second of all workers: by arithmetic and, where it was simulated, on the virtual clock."""

    way: str
    workers: int
    expected: float
    simulated: float | None = None


def cluster(workers: int) -> Cluster:
    """Return the example with so many workers."""
    return Cluster(workers, max(1, workers // EACH), 9_000_000, step_time=0.5, link=1.25e8, latency=1e-3)


def way(name: str, workers: int) -> Scale:
    """Return one of the ways to run it."""
    levels, shards, period, upward = WAYS[name]
    given = cluster(workers)
    return Scale(given, levels, min(shards, given.machines), period, upward, DELAY)


def simulated(run: Scale, periods: int = 2) -> float:
    """Return the steps a second of a simulation; the first periods, in which queues grow, do not count."""
    given = run.cluster
    machines = Machines(given.machines, run.upward, service=given.memory_time()) if run.levels else None
    sim = Simulation(
        lambda x, worker, step: torch.zeros_like(x), torch.ones(1), EASGD(period=run.period, delay=DELAY), lr=0.1,
        workers=given.workers, schedule="async", cost=CostModel.of_cluster(given, run.shards), guard=0,
        machines=machines,
    )  # fmt: skip
    ticks = periods * given.workers * run.period
    sim.run(ticks)
    before = sim.time
    sim.run(ticks)
    return ticks / (sim.time - before)


def compute(workers: tuple[int, ...]) -> list[Point]:
    """Evaluate all ways on a fine grid up to the largest number of workers, and simulate those that are given."""
    for p in workers:
        if count("workers", p) % EACH:
            raise refuse("workers", p, f"machines have {EACH} each", f"give multiples of {EACH}")
    grid = sorted({EACH * round(m) for m in np.geomspace(1, max(workers) / EACH, 60)})
    points = [Point(name, p, way(name, p).speed) for name in WAYS for p in grid]
    with progress("simulated", len(WAYS) * len(workers)) as advance:
        for name in WAYS:
            for p in workers:
                run = way(name, p)
                points.append(Point(name, p, run.speed, simulated(run)))
                advance(1)
    return points


def draw(points: list[Point]) -> Figure:
    """Draw lines for the arithmetic and dots for the simulator."""
    with figure(6.5, 4.2) as fig:
        axis = fig.subplots()
        most = max(point.workers for point in points)
        axis.plot([EACH, most], [2 * EACH, 2 * most], color="0.8", linewidth=4, label="nobody waits")
        for name, (colour, dash) in zip(WAYS, LINES, strict=False):
            line = [point for point in points if point.way == name and point.simulated is None]
            dots = [(point.workers, s) for point in points if point.way == name and (s := point.simulated) is not None]
            x, y = [point.workers for point in line], [point.expected for point in line]
            axis.plot(x, y, linestyle=dash, label=name, color=colour, linewidth=1.8)
            axis.plot([p for p, _ in dots], [s for _, s in dots], "o", color=colour, markersize=5)
        axis.set(xscale="log", yscale="log", xlabel="workers", ylabel="steps a second, all workers")
        axis.set_xticks(ticks := [EACH * 4**k for k in range(8) if EACH * 4**k <= most], [str(t) for t in ticks])
        axis.minorticks_off()
        axis.grid(True, which="major", color="0.9")
        axis.legend(fontsize=8, frameon=False)
        example = rf"9 M parameters, steps of 0.5 s, machines of {EACH} workers on 1 Gbit/s, $\tau$ = {PERIOD}"
        axis.set_title(f"{example}\nlines by arithmetic, dots simulated")
    return fig


def make(out: Path, workers: tuple[int, ...] = (8, 32, 128, 512)) -> list[Path]:
    """Compute, draw and write `scale.png`, `.pdf` and `.csv`."""
    points = compute(tuple(workers))
    rows = ([point.way, point.workers, point.expected, point.simulated] for point in points)
    return write(draw(points), ["way", "workers", "expected", "simulated"], rows, out, "scale")
