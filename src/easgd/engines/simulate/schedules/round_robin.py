"""Round-robin (section 4): worker t mod p alone acts at global tick t; its whole turn, then the next worker's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from easgd.engines.simulate.periods import set_periods
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
        if (flight := sim.begin(worker, now)) is not None:
            up, down = sim.exchange_cost.seconds(1, flight.fragment)
            flight.seconds = up + sim.exchange_cost.service(flight.fragment) + down
            sim.serve(worker, flight)
            if flight.answer is not None:
                worker.state.receive(flight.answer, flight.fragment)
        work = sim.start_compute(worker)
        worker.step.communication = sim.exchange_cost.exposed(worker, now, work)
        worker.step.waiting = now - sim.time
        sim.time = now + work + worker.step.communication
        for fragment, push in sim.step(worker, sim.time):
            sim.push(worker, fragment, push)
        set_periods(sim, [worker])
        return True

    def _next(self) -> SimWorker:
        while not (worker := self.sim.workers[self.turn % len(self.sim.workers)]).alive:
            self.turn += 1
        self.turn += 1
        return worker

    def _settled(self, worker: SimWorker) -> list[WorkerState]:
        # A method that does not wait for its answer takes the gradient at an x that no other turn can change.
        order = self.sim.workers[worker.state.rank :] + self.sim.workers[: worker.state.rank]
        free = self.sim.method.delay > 0
        return [w.state for w in order if w.alive and (free or not w.state.due)]

    def state_dict(self) -> dict[str, Any]:
        return {"turn": self.turn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.turn = state["turn"]
