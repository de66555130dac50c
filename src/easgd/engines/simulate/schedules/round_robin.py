"""Round-robin (section 4): worker t mod p alone acts at global tick t; its whole turn, then the next worker's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from easgd.engines.simulate.schedules.base import settle_faults
from easgd.worker.loop import Loop

if TYPE_CHECKING:
    from easgd.engines.simulate.engine import Simulation
    from easgd.engines.simulate.node import Node


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
        node = self._next()
        now = max(sim.time, node.paused_until)
        sim.gradients.ahead(self._settled(node))
        exchange = 0.0
        if sim.begin(node, now):
            up, down = sim.exchange_seconds(1)
            exchange = up + sim.cost.service + down
            sim.serve(node)
            if node.turn.answer is not None:
                node.worker.receive(node.turn.answer)
        work = sim.start_compute(node)
        hidden = sim.cost.overlap and not sim.method.waits
        node.turn.communication = max(0.0, exchange - work) if hidden else exchange
        node.turn.waiting = now - sim.time
        sim.time = now + work + node.turn.communication
        push = sim.step(node, sim.time)
        if push is not None:
            sim.center.push(push, sim.scale(node))
        return True

    def _next(self) -> Node:
        while not (node := self.sim.nodes[self.turn % len(self.sim.nodes)]).alive:
            self.turn += 1
        self.turn += 1
        return node

    def _settled(self, node: Node) -> list[Loop]:
        # A method that does not wait for its answer takes the gradient at an x that no other turn can change.
        order = self.sim.nodes[node.worker.rank :] + self.sim.nodes[: node.worker.rank]
        free = not self.sim.method.waits
        return [n.worker for n in order if n.alive and (free or not n.worker.due)]

    def state_dict(self) -> dict[str, Any]:
        """Whose turn it is."""
        return {"turn": self.turn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Whose turn it is."""
        self.turn = state["turn"]
