"""`period="auto"` on the virtual clock: the times are the cost model's, so a run is as repeatable as any other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from easgd.engines.simulate.sim_worker import ExchangeInFlight, SimWorker
from easgd.records import Event
from easgd.worker.stability import stable_period

if TYPE_CHECKING:
    from easgd.engines.simulate.engine import Simulation


def prepare_periods(sim: Simulation, curvature: float | None) -> None:
    """Tell every worker's controller, if it has one, what it cannot measure."""
    for worker in sim.workers:
        if (controller := worker.state.controller) is not None:
            controller.hidden = not sim.exchange_cost.blocking
            controller.follows = sim.schedule_name == "async" and sim.method.delay > 0
            controller.center_time = sim.exchange_cost.occupied
            lr = worker.state.replica.lr
            controller.stable = stable_period(sim.method, lr, sim.launched, sim.schedule_name, curvature)


def measure(worker: SimWorker, completed: list[ExchangeInFlight]) -> None:
    """Note what the worker's step took, and the exchanges that it completed."""
    if (controller := worker.state.controller) is not None:
        controller.stepped(worker.step.data + worker.step.compute)
        for flight in completed:
            controller.exchanged(flight.seconds)


def set_periods(sim: Simulation, workers: list[SimWorker]) -> None:
    """Let workers that have completed an exchange change their period; in synchronous rounds, all to the same."""
    controllers = [(worker, c) for worker in workers if (c := worker.state.controller) is not None]
    if not any(controller.fresh for _, controller in controllers):
        return
    for worker, controller in controllers:
        controller.workers = sim.beside(worker)[0]
        controller.assess()
    together = sim.schedule_name == "sync"
    slowest = 0.0 if together else max(w.state.controller.interval for w in sim.living if w.state.controller)
    proposals = [controller.proposal(slowest) for _, controller in controllers]
    for (worker, controller), own in zip(controllers, proposals, strict=True):
        if (change := controller.adopt(max(proposals) if together else own)) is not None:
            sim.on_record(Event("period", sim.time, worker.state.rank, change))
