"""Round-robin (section 4): worker t mod p alone acts at global tick t; its whole turn, then the next worker's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from easgd.engines.simulate.schedules.base import settle_faults
from easgd.worker.state import WorkerState

if TYPE_CHECKING:
    from easgd.engines.simulate.engine import Simulation
    from easgd.engines.simulate.sim_worker import SimWorker


class RoundRobin:
    """Workers take whole turns, one after the other; the center's new value is seen by the next."""

    def __init__(self, simulation: Simulation) -> None:
        self.sim = simulation
        self.turn = 0

    def tick(self) -> bool:
        """One worker's turn."""
        sim = self.sim
        if not settle_faults(sim):
            return False
        worker = self._next()
        now = max(sim.time, worker.paused_until)
        sim.gradients.ahead(self._settled(worker))
        exchange = 0.0
        if sim.begin(worker, now):
            up, down = sim.exchange_seconds(1)
            exchange = up + sim.cost.service + down
            sim.serve(worker)
            if worker.step.answer is not None:
                worker.state.receive(worker.step.answer)
        work = sim.start_compute(worker)
        hidden = sim.cost.overlap and not sim.method.waits
        worker.step.communication = max(0.0, exchange - work) if hidden else exchange
        worker.step.waiting = now - sim.time
        sim.time = now + work + worker.step.communication
        push = sim.step(worker, sim.time)
        if push is not None:
            sim.center.push(push, sim.scale(worker))
        return True

    def _next(self) -> SimWorker:
        while not (worker := self.sim.workers[self.turn % len(self.sim.workers)]).alive:
            self.turn += 1
        self.turn += 1
        return worker

    def _settled(self, worker: SimWorker) -> list[WorkerState]:
        # A method that does not wait for its answer takes the gradient at an x that no other turn can change.
        order = self.sim.workers[worker.state.rank :] + self.sim.workers[: worker.state.rank]
        free = not self.sim.method.waits
        return [w.state for w in order if w.alive and (free or not w.state.due)]

    def state_dict(self) -> dict[str, Any]:
        return {"turn": self.turn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.turn = state["turn"]
