"""Asynchronous: an event heap; each worker at its own pace, the center serves messages in the order they arrive."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor

from easgd.center.levels import machine_of
from easgd.engines.simulate.exchange_cost import Queue
from easgd.engines.simulate.periods import set_periods
from easgd.engines.simulate.strike import strike
from easgd.faults import Fault
from easgd.worker.state import WorkerState

if TYPE_CHECKING:
    from easgd.engines.simulate.engine import Simulation
    from easgd.engines.simulate.sim_worker import ExchangeInFlight, SimWorker

# What the event heap holds: (time, number, kind, rank, incarnation, fragment). The number breaks ties in the order of
# events; the fragment is that of the exchange, 0 for DONE. Of a machine's exchange with the run's center, rank and
# incarnation are the machine's.
ARRIVE, SERVE, REPLY, DONE, PUSH_ARRIVE, PUSH_SERVE, MACHINE_ARRIVE, MACHINE_SERVE, MACHINE_REPLY = range(9)


AnEvent = tuple[float, int, int, int, int, int]


class Asynchronous:
    """Every worker at its own pace; messages travel, queue at the center, and are served in order."""

    def __init__(self, simulation: Simulation) -> None:
        self.sim = simulation
        self.heap: list[AnEvent] = []
        self.number = 0
        self.queue = Queue(simulation.cost.shards)
        machines = 0 if simulation.levels is None else len(simulation.levels.machines)
        self.machine_queues = [Queue(1) for _ in range(machines)]
        self.in_flight: dict[int, Tensor] = {}
        self.events = 0
        self.stepped = False
        self.started = False

    def tick(self) -> bool:
        """Handle events until a step is complete."""
        sim = self.sim
        if not self.started:
            self.started = True
            for worker in sim.living:
                self._begin(worker)
        self.stepped = False
        while not self.stepped:
            horizon = self.heap[0][0] if self.heap else float("inf")
            if (fault := sim.next_fault(horizon)) is not None:
                sim.time = max(sim.time, fault.time)
                self._strike(fault)
            elif not self.heap:
                return False
            else:
                self._handle(heapq.heappop(self.heap))
        return True

    def _post(self, time: float, kind: int, worker: SimWorker, fragment: int = 0) -> int:
        self.number += 1
        heapq.heappush(self.heap, (time, self.number, kind, worker.state.rank, worker.state.incarnation, fragment))
        return self.number

    def _handle(self, event: AnEvent) -> None:
        sim = self.sim
        self.events += 1
        time, number, kind, rank, incarnation, fragment = event
        if kind >= MACHINE_ARRIVE:
            sim.time = time
            self._machine(number, kind, rank, incarnation)
            return
        worker = sim.workers[rank]
        sent = number in self.in_flight
        if not sent and (not worker.alive or worker.state.incarnation != incarnation):
            return  # what a dead worker had begun for itself never happens
        sim.time = time
        if time < worker.paused_until and (kind == DONE or (kind == REPLY and self._awaited(worker, fragment))):
            worker.step.waiting += worker.paused_until - time
            self._post(worker.paused_until, kind, worker, fragment)
            return
        if kind in (ARRIVE, PUSH_ARRIVE):
            self._arrive(worker, number, kind, fragment)
        elif kind == SERVE:
            self._serve(worker, number, fragment)
        elif kind == REPLY:
            self._reply(worker, worker.flight(fragment))
        elif kind == DONE:
            self._done(worker)
        else:
            self._push(worker, number, fragment)

    def _push(self, worker: SimWorker, number: int, fragment: int) -> None:
        """Apply what wants no answer, or whose sender has died since it was sent."""
        self.sim.push(worker, fragment, self.in_flight.pop(number))
        self._updated(worker.state.rank)

    def _awaited(self, worker: SimWorker, fragment: int) -> bool:
        """Whether the worker's present step cannot end without the answer to this exchange."""
        return self.sim.exchange_cost.blocking or worker.flight(fragment).due <= worker.state.clock

    def _begin(self, worker: SimWorker) -> None:
        sim = self.sim
        if (flight := sim.begin(worker, sim.time)) is not None:
            up, down = sim.exchange_cost.seconds(sim.alive, flight.fragment)
            flight.seconds = up + sim.exchange_cost.service(flight.fragment) + down
            self._post(sim.time + up, ARRIVE, worker, flight.fragment)
            if sim.exchange_cost.blocking:
                return
        self._compute(worker)

    def _compute(self, worker: SimWorker) -> None:
        self._post(self.sim.time + self.sim.start_compute(worker), DONE, worker)

    def _arrive(self, worker: SimWorker, number: int, kind: int, fragment: int) -> None:
        """Queue for the center, which serves one message at a time."""
        sim = self.sim
        rank, machines = worker.state.rank, len(self.machine_queues)
        queue = self.machine_queues[machine_of(rank, machines)] if machines else self.queue
        ends, queued = queue.enter(sim.time, sim.exchange_cost.work(fragment))
        served = self._post(ends, SERVE if kind == ARRIVE else PUSH_SERVE, worker, fragment)
        if number in self.in_flight:
            self.in_flight[served] = self.in_flight.pop(number)
        elif self._awaited(worker, fragment):
            worker.step.waiting += queued

    def _serve(self, worker: SimWorker, number: int, fragment: int) -> None:
        sim = self.sim
        if number in self.in_flight:  # the sender died after it had sent; nobody waits for the answer
            self._push(worker, number, fragment)
            return
        sim.serve(worker, worker.flight(fragment))
        self._updated(worker.state.rank)
        _, down = sim.exchange_cost.seconds(sim.alive, fragment)
        self._post(sim.time + down, REPLY, worker, fragment)

    def _updated(self, rank: int) -> None:
        """Count an update of a machine's center, and let the machine exchange with the run's when it is due."""
        if (levels := self.sim.levels) is not None:
            levels.of(rank).since += 1
            self._begin_machine(machine_of(rank, levels.settings.count))

    def _begin_machine(self, m: int) -> None:
        levels = self.sim.levels
        assert levels is not None
        if (message := levels.begins(m)) is not None:
            up, _ = levels.cost.seconds(levels.living, 0)
            self._post_machine(self.sim.time + up, MACHINE_ARRIVE, m, levels.machines[m].incarnation, message)

    def _post_machine(self, time: float, kind: int, m: int, incarnation: int, carried: Tensor | None) -> None:
        self.number += 1
        heapq.heappush(self.heap, (time, self.number, kind, m, incarnation, 0))
        if carried is not None:
            self.in_flight[self.number] = carried

    def _machine(self, number: int, kind: int, m: int, incarnation: int) -> None:
        """One event of a machine's exchange. A message arrives although its machine was lost; an answer does not."""
        levels, now = self.sim.levels, self.sim.time
        assert levels is not None
        carried = self.in_flight.pop(number, None)
        if kind == MACHINE_ARRIVE:
            ends, _ = self.queue.enter(now, levels.cost.work(0))
            self._post_machine(ends, MACHINE_SERVE, m, incarnation, carried)
        elif kind == MACHINE_SERVE:
            assert carried is not None
            _, down = levels.cost.seconds(levels.living, 0)
            self._post_machine(now + down, MACHINE_REPLY, m, incarnation, levels.serve(m, carried))
        elif levels.machines[m].incarnation == incarnation:
            levels.receive(m, carried)
            self._begin_machine(m)

    def _reply(self, worker: SimWorker, flight: ExchangeInFlight) -> None:
        sim, step = self.sim, worker.step
        flight.answered = True
        if sim.exchange_cost.blocking:
            if flight.answer is not None:
                worker.state.receive(flight.answer, flight.fragment)
            step.communication = sim.time - step.began - step.waiting
            self._compute(worker)
        elif step.done_at is not None and all(due.answered for due in worker.due()):
            # The gradient was faster than the exchange: only what stuck out is lost.
            late = sim.time - step.done_at
            step.waiting = min(late, step.waiting)
            step.communication = late - step.waiting
            self._complete(worker)

    def _done(self, worker: SimWorker) -> None:
        step, due = worker.step, worker.due()
        if not all(flight.answered for flight in due):
            step.done_at = self.sim.time
            return
        if due and not self.sim.exchange_cost.blocking:
            step.waiting = 0.0  # the queue was behind the gradient
        self._complete(worker)

    def _complete(self, worker: SimWorker) -> None:
        sim = self.sim
        sim.gradients.ahead(self._settled())
        pushes = sim.step(worker, sim.time)
        self.stepped = True
        for fragment, push in pushes:
            up = sim.exchange_cost.push_seconds(sim.alive, fragment)
            self.in_flight[self._post(sim.time + up, PUSH_ARRIVE, worker, fragment)] = push
        set_periods(sim, [worker])
        self._begin(worker)

    def _settled(self) -> Iterator[WorkerState]:
        # Workers whose gradient time runs: the soonest to end first, this tick's own among them.
        if self.sim.gradients.parallel == 1:
            return
        for _, _, kind, rank, incarnation, _ in sorted(self.heap):
            worker = self.sim.workers[rank]
            if kind == DONE and worker.alive and worker.state.incarnation == incarnation:
                yield worker.state

    def _strike(self, fault: Fault) -> None:
        worker = self.sim.workers[fault.worker]
        if fault.what == "death" and worker.alive:
            # A message already under way arrives: keep it as it was when its sender died.
            for event in self.heap:
                if event[2] in (ARRIVE, SERVE) and event[3] == fault.worker and event[1] not in self.in_flight:
                    message = worker.flight(event[5]).message
                    if message is not None:
                        self.in_flight[event[1]] = message.clone()
        joins = fault.what == "join" and not worker.alive
        strike(self.sim, fault)
        if joins:
            self._begin(worker)

    def state_dict(self) -> dict[str, Any]:
        """The heap, the center's queue and the messages in flight."""
        return {
            "heap": [list(event) for event in sorted(self.heap)],
            "number": self.number,
            "free_at": [self.queue.free_at, *(queue.free_at for queue in self.machine_queues)],
            "in_flight": dict(self.in_flight),
            "started": self.started,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.heap = [tuple(event) for event in state["heap"]]
        self.number, self.started = state["number"], state["started"]
        free_at = state["free_at"]
        if isinstance(free_at, float):  # saved before a center could have several queues
            free_at = [[free_at]]
        for queue, ends in zip([self.queue, *self.machine_queues], free_at, strict=True):
            queue.free_at = list(ends)
        self.in_flight = dict(state["in_flight"])
