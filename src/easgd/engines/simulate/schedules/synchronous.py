"""Synchronous (equations 1-4): all exchange from the same x̃, all step, a barrier ends the round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from easgd.engines.simulate.schedules.base import settle_faults

if TYPE_CHECKING:
    from easgd.engines.simulate.engine import Simulation
    from easgd.engines.simulate.sim_worker import SimWorker


class Synchronous:
    """Rounds with a barrier; a round shrinks when a worker has died."""

    def __init__(self, simulation: Simulation) -> None:
        self.sim = simulation

    def tick(self) -> bool:
        """One round of all living workers."""
        sim = self.sim
        if not settle_faults(sim):
            return False
        workers, start = sim.living, sim.time
        asking = [worker for worker in workers if sim.begin(worker, start)]
        exchange = self._exchange(asking)
        sim.gradients.ahead(worker.state for worker in workers)
        hidden = sim.cost.overlap and not sim.method.waits
        ends = []
        for worker in workers:
            work = sim.start_compute(worker)
            comm = exchange if worker.step.asked else 0.0
            worker.step.communication = max(0.0, comm - work) if hidden else comm
            ends.append(max(start, worker.paused_until) + work + worker.step.communication)
        sim.time = max(ends)
        pushes: list[Tensor] = []
        for i, worker in enumerate(workers):
            worker.step.waiting = sim.time - ends[i] + max(0.0, worker.paused_until - start)
            if (push := sim.step(worker, sim.time)) is not None:
                pushes.append(sim.method.propose(sim.center.slots, push, sim.scale(worker)))
            sim.gradients.ahead(later.state for later in workers[i + 1 :])
        if pushes:
            sim.center.absorb_round(pushes)
        return True

    def _exchange(self, asking: list[SimWorker]) -> float:
        """All messages meet the same x̃; return the seconds that every participant's exchange takes."""
        sim = self.sim
        if not asking:
            return 0.0
        messages = [worker.state.message() for worker in asking]
        for worker in asking:
            sim.observe(worker)
        ranks = [worker.state.rank for worker in asking]
        answers = sim.center.exchange_all(messages, [sim.scale(worker) for worker in asking], ranks)
        for worker, answer in zip(asking, answers, strict=True):
            sim.answered(worker, answer)
            if answer is not None:
                worker.state.receive(answer)
        up, down = sim.exchange_seconds(len(asking))
        return up + len(asking) * sim.cost.service + down

    def state_dict(self) -> dict[str, Any]:
        """Nothing: a round leaves nothing under way."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
