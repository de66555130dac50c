"""Synchronous (equations 1-4): all exchange from the same x̃, all step, a barrier ends the round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from easgd.center.state import finite
from easgd.engines.simulate.periods import set_periods
from easgd.engines.simulate.schedules.base import settle_faults

if TYPE_CHECKING:
    from easgd.engines.simulate.engine import Simulation
    from easgd.engines.simulate.sim_worker import ExchangeInFlight, SimWorker


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
        asking = [(worker, flight) for worker in workers if (flight := sim.begin(worker, start)) is not None]
        # Workers that joined later may be at another fragment: those of one fragment meet.
        for fragment in sorted({flight.fragment for _, flight in asking}):
            self._exchange(fragment, [pair for pair in asking if pair[1].fragment == fragment])
        sim.gradients.ahead(worker.state for worker in workers)
        ends = []
        for worker in workers:
            work = sim.start_compute(worker)
            worker.step.communication = sim.exchange_cost.exposed(worker, start, work)
            ends.append(max(start, worker.paused_until) + work + worker.step.communication)
        sim.time = max(ends)
        pushes: dict[int, list[tuple[SimWorker, Tensor]]] = {}
        for i, worker in enumerate(workers):
            worker.step.waiting = sim.time - ends[i] + max(0.0, worker.paused_until - start)
            for fragment, push in sim.step(worker, sim.time):
                change = sim.method.propose(sim.center.parts[fragment].slots, push, sim.scale(worker, fragment))
                pushes.setdefault(fragment, []).append((worker, change))
            sim.gradients.ahead(later.state for later in workers[i + 1 :])
        for fragment, changes in pushes.items():
            for worker, change in changes:
                sim.sender(worker)
                sim.center.parts[fragment].add_to_round(change, sim.scale(worker, fragment))
            sim.center.parts[fragment].end_round()
        set_periods(sim, workers)
        return True

    def _exchange(self, fragment: int, asking: list[tuple[SimWorker, ExchangeInFlight]]) -> None:
        """All messages meet the same x̃."""
        sim = self.sim
        for worker, flight in asking:
            sim.observe(worker, flight)
        messages = [self._arrives(worker, flight) for worker, flight in asking]
        scales, ranks = [sim.scale(w, fragment) for w, _ in asking], [w.state.rank for w, _ in asking]
        senders = [sim.sender(worker) for worker, _ in asking]
        answers = sim.center.parts[fragment].exchange_all(messages, scales, ranks, senders)
        up, down = sim.exchange_cost.seconds(len(asking), fragment)
        for (worker, flight), answer, sender in zip(asking, answers, senders, strict=True):
            if sim.history is not None:
                sim.history.sender = sender
            if worker.links is not None and answer is not None:
                link = worker.links[fragment]
                answer = link.follow(answer)
                flight.bytes += link.sent_in_full * sim.exchange_cost.more_in_full(fragment)
            flight.seconds = up + len(asking) * sim.exchange_cost.service(fragment) + down
            sim.answered(worker, flight, answer)
            if flight.answer is not None:
                worker.state.receive(flight.answer, fragment)

    def _arrives(self, worker: SimWorker, flight: ExchangeInFlight) -> Tensor | None:
        """What the center sees of a message, rounded where it is compressed; what is not finite leaves no trace."""
        message = flight.message
        if worker.links is None or message is None or not finite(message):
            return message
        return worker.links[flight.fragment].there(message)

    def state_dict(self) -> dict[str, Any]:
        """Nothing: a round leaves nothing under way."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass
