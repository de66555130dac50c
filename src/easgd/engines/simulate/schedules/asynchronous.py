"""Asynchronous: an event heap; each worker at its own pace, the center serves messages in the order they arrive."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor

from easgd.engines.simulate.faults import Fault
from easgd.worker.loop import Loop

if TYPE_CHECKING:
    from easgd.engines.simulate.engine import Simulation
    from easgd.engines.simulate.node import Node

# What the event heap holds: (time, number, kind, rank, incarnation). The number breaks ties in the order of events.
ARRIVE, SERVE, REPLY, DONE, PUSH_ARRIVE, PUSH_SERVE = range(6)


class Asynchronous:
    """Every worker at its own pace; messages travel, queue at the center, and are served in order."""

    def __init__(self, simulation: Simulation) -> None:
        self.sim = simulation
        self.heap: list[tuple[float, int, int, int, int]] = []
        self.number = 0
        self.free_at = 0.0
        self.parcels: dict[int, Tensor] = {}
        self.events = 0
        self.stepped = False
        self.started = False

    def tick(self) -> bool:
        """Handle events until a step is complete."""
        sim = self.sim
        if not self.started:
            self.started = True
            for node in sim.living:
                self._begin(node)
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

    def _post(self, time: float, kind: int, node: Node) -> int:
        self.number += 1
        heapq.heappush(self.heap, (time, self.number, kind, node.worker.rank, node.worker.incarnation))
        return self.number

    def _handle(self, event: tuple[float, int, int, int, int]) -> None:
        sim = self.sim
        self.events += 1
        time, number, kind, rank, incarnation = event
        node = sim.nodes[rank]
        sent = number in self.parcels
        if not sent and (not node.alive or node.worker.incarnation != incarnation):
            return  # what a dead worker had begun for itself never happens
        sim.time = time
        if kind in (REPLY, DONE) and time < node.paused_until:
            node.turn.waiting += node.paused_until - time
            self._post(node.paused_until, kind, node)
            return
        if kind in (ARRIVE, PUSH_ARRIVE):
            self._arrive(node, number, kind)
        elif kind == SERVE:
            self._serve(node, number)
        elif kind == REPLY:
            self._reply(node)
        elif kind == DONE:
            self._done(node)
        else:
            sim.center.push(self.parcels.pop(number), sim.scale(node))

    def _begin(self, node: Node) -> None:
        sim = self.sim
        if sim.begin(node, sim.time):
            up, _ = sim.exchange_seconds(sim.alive)
            self._post(sim.time + up, ARRIVE, node)
            if sim.method.waits or not sim.cost.overlap:
                return
        self._compute(node)

    def _compute(self, node: Node) -> None:
        self._post(self.sim.time + self.sim.start_compute(node), DONE, node)

    def _arrive(self, node: Node, number: int, kind: int) -> None:
        """Queue for the center, which serves one message at a time."""
        sim = self.sim
        queued = max(0.0, self.free_at - sim.time)
        self.free_at = sim.time + queued + sim.cost.service
        if kind == ARRIVE:
            node.turn.waiting += queued
        served = self._post(self.free_at, SERVE if kind == ARRIVE else PUSH_SERVE, node)
        if number in self.parcels:
            self.parcels[served] = self.parcels.pop(number)

    def _serve(self, node: Node, number: int) -> None:
        sim = self.sim
        if number in self.parcels:  # the sender died after it had sent; nobody waits for the answer
            sim.center.push(self.parcels.pop(number), sim.scale(node))
            return
        sim.serve(node)
        _, down = sim.exchange_seconds(sim.alive)
        self._post(sim.time + down, REPLY, node)

    def _reply(self, node: Node) -> None:
        sim, turn = self.sim, node.turn
        turn.answered = True
        if sim.method.waits or not sim.cost.overlap:
            if turn.answer is not None:
                node.worker.receive(turn.answer)
            turn.communication = sim.time - turn.began - turn.waiting
            self._compute(node)
        elif turn.done_at is not None:
            # The gradient was faster than the exchange: only what stuck out is lost.
            late = sim.time - turn.done_at
            turn.waiting = min(late, turn.waiting)
            turn.communication = late - turn.waiting
            self._complete(node)

    def _done(self, node: Node) -> None:
        turn = node.turn
        if turn.asked and not turn.answered:
            turn.done_at = self.sim.time
            return
        if turn.asked and self.sim.cost.overlap and not self.sim.method.waits:
            turn.waiting = 0.0  # the queue was behind the gradient
        self._complete(node)

    def _complete(self, node: Node) -> None:
        sim = self.sim
        sim.gradients.ahead(self._settled())
        push = sim.step(node, sim.time)
        self.stepped = True
        if push is not None:
            up = sim.cost.transfer_seconds(sim.message_bytes, sim.alive)
            self.parcels[self._post(sim.time + up, PUSH_ARRIVE, node)] = push
        self._begin(node)

    def _settled(self) -> Iterator[Loop]:
        # Workers whose gradient time runs: the soonest to end first, this tick's own among them.
        if self.sim.gradients.parallel == 1:
            return
        for _, _, kind, rank, incarnation in sorted(self.heap):
            node = self.sim.nodes[rank]
            if kind == DONE and node.alive and node.worker.incarnation == incarnation:
                yield node.worker

    def _strike(self, fault: Fault) -> None:
        node = self.sim.nodes[fault.worker]
        if fault.what == "death" and node.alive:
            # A message already under way arrives: keep it as it was when its sender died.
            for event in self.heap:
                if event[2] in (ARRIVE, SERVE) and event[3] == fault.worker and event[1] not in self.parcels:
                    message = node.worker.message()
                    if message is not None:
                        self.parcels[event[1]] = message.clone()
        joins = fault.what == "join" and not node.alive
        self.sim.strike(fault)
        if joins:
            self._begin(node)

    def state_dict(self) -> dict[str, Any]:
        """The heap, the center's queue and the parcels under way."""
        return {
            "heap": [list(event) for event in sorted(self.heap)],
            "number": self.number,
            "free_at": self.free_at,
            "parcels": dict(self.parcels),
            "started": self.started,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.heap = [tuple(event) for event in state["heap"]]
        self.number, self.free_at, self.started = state["number"], state["free_at"], state["started"]
        self.parcels = dict(state["parcels"])
