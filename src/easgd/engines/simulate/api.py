"""`easgd.simulate`: a whole run of small vectors in one call, with every iterate kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from easgd.engines.simulate.engine import ScheduleName, Simulation
from easgd.engines.simulate.gradients import Gradient
from easgd.errors import refuse
from easgd.methods import Method
from easgd.records import Breakdown, Record, breakdown


@dataclass(frozen=True)
class Trajectory:
    """Every iterate of a simulated run; row 0 is the start.

    Attributes:
        center: x̃, [steps + 1, n].
        local: the paper's xⁱ, [steps + 1, workers, n]; NaN for a rank that has not joined yet.
        average: z, [steps + 1, n], or None where the method keeps none.
        time: virtual seconds, [steps + 1].
        records: one `Step` per local step and one `Event` per remarkable event, in order.

    Example:
        >>> import torch, easgd
        >>> run = easgd.simulate(lambda x, worker, step: x, torch.ones(3), easgd.EASGD(period=1), lr=0.5, workers=2,
        ...                      steps=6)
        >>> run.center.shape, run.local.shape, run.time.shape, run.average
        (torch.Size([7, 3]), torch.Size([7, 2, 3]), torch.Size([7]), None)
    """

    center: Tensor
    local: Tensor
    average: Tensor | None
    time: Tensor
    records: list[Record]

    def breakdown(self, worker: int | None = None) -> Breakdown:
        """Where the virtual time went, as in the paper's table."""
        return breakdown(self.records, worker)


def simulate(
    gradient: Gradient,
    x0: Tensor,
    method: Method,
    *,
    lr: float,
    workers: int,
    steps: int,
    schedule: ScheduleName = "round-robin",
    seed: int = 0,
    cost: Any = None,
    **settings: Any,
) -> Trajectory:
    """Run a method on a virtual clock and keep every iterate.

    Args:
        gradient: gradient(x, worker, step), the stochastic gradient at x; step is that worker's own clock.
        x0: the point where the center and all workers start (but see starts); its dtype is kept.
        method: for instance `easgd.EASGD(period=10, beta=0.9)`.
        lr: η.
        workers: p.
        steps: global ticks (round-robin, async), or rounds of all workers (sync).
        schedule: "round-robin", "async" or "sync".
        seed: of the cost model's jitter.
        cost: a `CostModel`, the name of a preset, or None for one second per step with 10 % jitter.
        **settings: weight_decay (λ); optimizer and scheduler, functions that make a worker's own from its parameters
            and from its optimizer; faults, a list of `Fault`; curvature, to have (η, α) checked against it;
            nonfinite, "skip" (default), "reset" or "raise"; guard, how many times the usual distance from the center a
            message may have (30; 0 for any); parallel, gradients computed at once by threads; history, a
            `easgd.center.history.History` in which every exchange is written down; machines, `Machines` whose workers
            share a center each (async); starts, a function that gives each worker a point of its own to start from.

    Returns:
        A `Trajectory`.

    Example:
        >>> import torch, easgd
        >>> run = easgd.simulate(lambda x, worker, step: x, torch.ones(1, dtype=torch.float64),
        ...                      easgd.EASGD(period=1, moving_rate=0.2), lr=0.1, workers=2, steps=4)
        >>> [round(float(x), 4) for x in run.center]
        [1.0, 1.0, 1.0, 0.98, 0.964]
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 0:
        raise refuse("steps", steps, "a run has a whole number of steps, 0 or more", "write steps=100")
    records: list[Record] = []
    sim = Simulation(
        gradient, x0, method, lr=lr, workers=workers, schedule=schedule, seed=seed, cost=cost,
        on_record=records.append, **settings,
    )  # fmt: skip
    center, n, ranks = sim.center, sim.center.x.numel(), len(sim.workers)
    rows = steps + 1
    out = Trajectory(
        center=center.x.new_empty(rows, n),
        local=center.x.new_empty(rows, ranks, n),
        average=center.x.new_empty(rows, n) if method.keeps_average else None,
        time=torch.empty(rows, dtype=torch.float64),
        records=records,
    )

    def keep(sim: Simulation) -> None:
        t = sim.ticks
        out.center[t] = center.x
        out.time[t] = sim.time
        if out.average is not None and center.average is not None:
            out.average[t] = center.average
        for rank, worker in enumerate(sim.workers):
            joined = worker.alive or worker.state.incarnation > 0 or rank < workers
            out.local[t, rank] = worker.state.local() if joined else torch.nan

    keep(sim)
    try:
        done = sim.run(steps, keep)
    finally:
        sim.end_record()
        sim.gradients.close()
    rows = done + 1
    average = None if out.average is None else out.average[:rows]
    return Trajectory(out.center[:rows], out.local[:rows], average, out.time[:rows], records)
