"""Synchronous (equations 1-4): all exchange from the same x̃, all step, a barrier ends the round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from easgd.engines.simulate.schedules.base import settle_faults

if TYPE_CHECKING:
    from easgd.engines.simulate.engine import Simulation
    from easgd.engines.simulate.node import Node


class Synchronous:
    """Rounds with a barrier; a round shrinks when a worker has died."""

    def __init__(self, simulation: Simulation) -> None:
        self.sim = simulation

    def tick(self) -> bool:
        """One round of all living workers."""
        sim = self.sim
        if not settle_faults(sim):
            return False
        nodes, start = sim.living, sim.time
        asking = [node for node in nodes if sim.begin(node, start)]
        exchange = self._exchange(asking)
        sim.gradients.ahead(node.worker for node in nodes)
        hidden = sim.cost.overlap and not sim.method.waits
        ends = []
        for node in nodes:
            work = sim.start_compute(node)
            comm = exchange if node.turn.asked else 0.0
            node.turn.communication = max(0.0, comm - work) if hidden else comm
            ends.append(max(start, node.paused_until) + work + node.turn.communication)
        sim.time = max(ends)
        pushes = []
        for i, node in enumerate(nodes):
            node.turn.waiting = sim.time - ends[i] + max(0.0, node.paused_until - start)
            if (push := sim.step(node, sim.time)) is not None:
                pushes.append((push, sim.scale(node)))
            sim.gradients.ahead(later.worker for later in nodes[i + 1 :])
        if pushes:
            sim.center.push_all(*zip(*pushes, strict=True))
        return True

    def _exchange(self, asking: list[Node]) -> float:
        """All messages meet the same x̃; return the seconds that every participant's exchange takes."""
        sim = self.sim
        if not asking:
            return 0.0
        messages = [node.worker.message() for node in asking]
        for node in asking:
            sim.observe(node)
        answers = sim.center.exchange_all(messages, [sim.scale(node) for node in asking])
        for node, answer in zip(asking, answers, strict=True):
            sim.answered(node, answer)
            if answer is not None:
                node.worker.receive(answer)
        up, down = sim.exchange_seconds(len(asking))
        return up + len(asking) * sim.cost.service + down

    def state_dict(self) -> dict[str, Any]:
        """Nothing: a round leaves nothing under way."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing."""
