"""`easgd bench period`: how soon a period that sets itself reaches a target, on the virtual clock.

Two questions. Is `period="auto"` as fast as the best period of a grid, at several bandwidths? And do unequal workers
with periods of their own reach the target sooner than in synchronous rounds, at the same final loss?

The loss is a noisy quadratic of widely spread curvatures. Times are virtual: the ratios are the same on any machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

import easgd
from easgd.bench import Row
from easgd.engines.simulate import CostModel, Simulation
from easgd.engines.simulate.engine import ScheduleName
from easgd.methods import Method

GRID = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
BANDWIDTHS = (32e3, 8e3, 4e3)  # bytes per second: an exchange takes 0.2, 0.8 and 1.6 steps
SPEEDS = tuple(1 / seconds for seconds in (0.58, 0.75, 1.51, 3.33))
WORKERS = 4


@dataclass(frozen=True)
class Job:
    """A noisy quadratic, F(x) = Σ h x²/2, and the squared distance to its optimum at which it counts as solved."""

    size: int = 200
    flattest: float = 1e-3
    lr: float = 0.5
    sigma: float = 0.2
    target: float = 0.02  # of the squared distance at the start
    longest: int = 60_000  # ticks

    @cached_property
    def curvatures(self) -> Tensor:
        return torch.from_numpy(np.geomspace(self.flattest, 1.0, self.size))

    def gradient(self, x: Tensor, worker: int, step: int) -> Tensor:
        noise = np.random.default_rng([worker, step]).standard_normal(self.size)
        return self.curvatures * x - self.sigma * self.curvatures.sqrt() * torch.from_numpy(noise)

    def loss(self, x: Tensor) -> float:
        """The mean squared distance to the optimum; 1 at the start."""
        return float((x * x).mean())

    def run(self, method: Method, cost: CostModel, schedule: ScheduleName = "async") -> tuple[float, Simulation]:
        """Return the virtual seconds to the target (∞ if it is not reached), and the simulation."""
        sim = Simulation(
            self.gradient, torch.ones(self.size, dtype=torch.float64), method, lr=self.lr, workers=WORKERS,
            schedule=schedule, cost=cost,
        )  # fmt: skip
        while sim.ticks < self.longest and self.loss(sim.center.x) > self.target:
            sim.run(1)
        return (sim.time if self.loss(sim.center.x) <= self.target else math.inf), sim


def rows(job: Job | None = None, grid: tuple[int, ...] = GRID) -> list[Row]:
    """Compare auto with the best fixed τ at each bandwidth, then with rounds where the workers are unequal."""
    job = job or Job()
    return [*(bandwidth_row(job, b, grid) for b in BANDWIDTHS), *unequal_rows(job)]


def bandwidth_row(job: Job, bandwidth: float, grid: tuple[int, ...]) -> Row:
    """The time to the target with `period="auto"` against the best of the grid."""
    cost = CostModel(bandwidth=bandwidth, message_bytes=3200, service=0.01)
    times = {tau: job.run(easgd.EASGD(period=tau), cost)[0] for tau in grid}
    best = min(times, key=times.__getitem__)
    own, sim = job.run(easgd.EASGD(period="auto"), cost)
    controller = sim.workers[0].state.controller
    assert controller is not None
    exchange = 2 * 3200 / bandwidth + cost.service
    case = (
        f"an exchange of {exchange:.2f} steps: auto (τ = {controller.period}) against the best of the grid, τ = {best}"
    )
    return Row(case, own, "s to the target", times[best], own / times[best])


def unequal_rows(job: Job) -> list[Row]:
    """Unequal workers: periods of their own against synchronous rounds, and the losses after the same time."""
    cost = CostModel(bandwidth=32e3, message_bytes=3200, service=0.01, speeds=SPEEDS)
    together, sync = job.run(easgd.EASGD(period="auto", sync=True), cost, "sync")
    own, sim = job.run(easgd.EASGD(period="auto"), cost)
    periods = ", ".join(str(w.state.controller.period) for w in sim.workers if w.state.controller is not None)
    for one in (sim, sync):  # to where the loss no longer falls
        while one.time < 3 * together:
            one.run(1)
    final, reference = job.loss(sim.center.x), job.loss(sync.center.x)
    return [
        Row(
            f"unequal workers, τ = {periods}: against synchronous rounds",
            own,
            "s to the target",
            together,
            own / together,
        ),
        Row("unequal workers: final loss", final, "of the start", reference, final / reference),
    ]
