"""What a fault of a plan does to a simulated worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from easgd.engines.simulate.sim_worker import SimWorker
from easgd.faults import Fault
from easgd.records import Event

if TYPE_CHECKING:
    from easgd.engines.simulate.engine import Simulation


def strike(sim: Simulation, fault: Fault) -> None:
    """Let a fault happen to its worker."""
    worker = sim.workers[fault.worker]
    sim.on_record(Event(fault.what, fault.time, fault.worker, f"{fault.amount:g}" if fault.amount else ""))
    if fault.what == "death":
        worker.alive = False
        sim.gradients.drop(worker.state)
        _recount(sim, fault.worker)
    elif fault.what == "join" and not worker.alive:
        worker.alive = True
        _recount(sim, fault.worker)
        _rejoin(sim, worker)
    elif fault.what == "pause":
        worker.paused_until = fault.time + fault.amount
    elif fault.what == "slow":
        worker.slowness = fault.amount
    if fault.what in ("death", "join"):
        sim.alive = len(sim.living)
        sim.roll()
        sim.on_record(Event("workers", fault.time, None, f"{sim.alive} alive, scale {sim.scale(worker):.6g}"))


def _rejoin(sim: Simulation, worker: SimWorker) -> None:
    """Start a worker anew, from its center."""
    worker.paused_until, worker.slowness, worker.in_flight = 0.0, 1.0, []
    center = sim.center_of(worker)
    worker.seen = [part.version for part in center.parts]
    worker.state.join(center.x)
    worker.links = sim.new_links()
    if sim.make_scheduler is not None:
        # The rate decays on the worker's own clock, which starts anew.
        optimizer = worker.state.replica.optimizer
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"]
        worker.scheduler = sim.make_scheduler(optimizer)
        worker.state.replica.rates = [float(group["lr"]) for group in optimizer.param_groups]


def _recount(sim: Simulation, rank: int) -> None:
    if sim.levels is None:
        sim.center.forget(rank)
    else:
        sim.levels.recount(rank)
