"""Where one worker stands in the paper's loop; the same on every engine, and for a script that trains alone.

    begin      top of the loop at clock t: is an exchange due, and what is sent?
    receive    the answer of a method that waits for it (before the gradient)
    …          gradient at the replica's point, optimizer step: the engine's, or the user's own loop
    finish     the rest of the exchange (xⁱ ← xⁱ − d), and the clock

It does no waiting and no I/O: an engine carries its messages, on a virtual clock or a real one.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from easgd.flat import Replica
from easgd.methods import Method


class WorkerState:
    """One worker: its replica, its method, and where it stands."""

    def __init__(self, rank: int, replica: Replica, method: Method, *, alone: bool = False) -> None:
        self.rank = rank
        self.replica = replica
        self.method = method
        self.alone = alone
        self.clock = 0
        self.incarnation = 0
        self.slots = method.start(replica)

    @property
    def due(self) -> bool:
        """Whether this step begins with an exchange; alone, none does."""
        return not (self.alone or self.method.sequential) and self.method.due(self.clock)

    def prepare(self) -> None:
        """Before a message is read or a step is taken: let the velocity follow a changed learning rate."""
        if self.method.delta and not (self.alone and not self.method.sequential):
            self.replica.follow_rate()

    def message(self) -> Tensor | None:
        """What this exchange sends. It may share the replica's memory until the step (see also `sends_local`)."""
        return self.method.send(self.replica, self.slots)

    def local(self) -> Tensor:
        """The paper's xⁱ."""
        return self.method.local(self.replica)

    def receive(self, answer: Tensor) -> None:
        """Take the answer before the gradient, where the method waits for it."""
        if self.method.waits:
            self.method.receive(self.replica, self.slots, answer)

    def finish(self, answer: Tensor | None) -> Tensor | None:
        """After the optimizer's step: complete the exchange, tick, and return what the center must still add."""
        self.clock += 1
        if self.method.sequential:
            # Alone and without an average, nobody reads the center between two steps: `Worker.center` asks for x then.
            return None if self.alone and not self.method.keeps_average else self.local()
        return None if answer is None else self.method.finish(self.replica, self.slots, answer)

    def join(self, x: Tensor) -> None:
        """Start, or start again, from the center's value: a new incarnation with its own clock."""
        self.incarnation += 1
        self.clock = 0
        self.replica.reset_(x)
        self.slots = self.method.start(self.replica)

    def state_dict(self) -> dict[str, Any]:
        """Return clock, incarnation, the method's vectors, parameters and optimizer state."""
        return {
            "clock": self.clock,
            "incarnation": self.incarnation,
            "slots": self.slots,
            "replica": self.replica.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.clock, self.incarnation = state["clock"], state["incarnation"]
        self.slots = {name: vector.clone() for name, vector in state["slots"].items()}
        self.replica.load_state_dict(state["replica"])
