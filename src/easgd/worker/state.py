"""Where one worker stands in the paper's loop; the same on every engine, and for a script that trains alone.

    begin      top of the loop at clock t: is an exchange due, and what is sent?
    receive    the answer of a method that waits for it (before the gradient)
    …          gradient at the replica's point, optimizer step: the engine's, or the user's own loop
    complete   the rest of an exchange (xⁱ ← xⁱ − d), after the step at which its answer is due
    finish     the clock

With fragments each exchange is of one part of the replica, in turn; the method's vectors are kept part by part.
It does no waiting and no I/O: an engine carries its messages, on a virtual clock or a real one.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from easgd.center.layout import fragment_bounds
from easgd.flat import Replica
from easgd.methods import Method, Slots
from easgd.worker.period import PeriodController


class WorkerState:
    """One worker: its replica, its method, and where it stands."""

    def __init__(self, rank: int, replica: Replica, method: Method, *, alone: bool = False) -> None:
        self.rank = rank
        self.replica = replica
        self.method = method
        self.alone = alone
        self.clock = 0
        self.incarnation = 0
        self.exchanges = 0
        self.controller = PeriodController(method) if method.automatic else None
        self.parts = [replica.part(a, b) for a, b in fragment_bounds(replica.size, method.fragments)]
        self.slots: list[Slots] = []
        self.start()

    def start(self) -> None:
        """Make the method's own vectors anew, for the present value of the replica."""
        self.slots = [self.method.start(part) for part in self.parts]

    @property
    def due(self) -> bool:
        """Whether this step begins with an exchange; alone, none does."""
        if self.alone or self.method.sequential:
            return False
        set_itself = self.controller is not None and self.controller.due(self.clock)
        return set_itself or self.method.due(self.clock)

    @property
    def fragment(self) -> int:
        """Which part of the vector the next exchange is of."""
        return self.exchanges % self.method.fragments

    @property
    def due_after(self) -> int:
        """The clock of the step after which an exchange that begins now is completed."""
        delay = self.method.delay if self.controller is None else self.controller.delay
        return self.clock + max(1, delay) - 1

    def prepare(self) -> None:
        """Before a message is read or a step is taken: let the velocity follow a changed learning rate."""
        if self.method.delta and not (self.alone and not self.method.sequential):
            self.replica.follow_rate()

    def message(self) -> Tensor | None:
        """What this exchange sends. It may share the replica's memory until the step (see also `sends_local`)."""
        return self.method.send(self.parts[self.fragment], self.slots[self.fragment])

    def local(self, fragment: int | None = None) -> Tensor:
        """The paper's xⁱ, or a fragment of it."""
        return self.method.local(self.replica if fragment is None else self.parts[fragment])

    def receive(self, answer: Tensor, fragment: int) -> None:
        """Take the answer before the gradient, where the method waits for it."""
        if self.method.delay == 0:
            self.method.receive(self.parts[fragment], self.slots[fragment], answer)

    def complete(self, answer: Tensor, fragment: int) -> Tensor | None:
        """Use an answer after the optimizer's step at which it is due; return what the center must still add."""
        return self.method.finish(self.parts[fragment], self.slots[fragment], answer)

    def finish(self) -> Tensor | None:
        """Tick, after the optimizer's step; return what the center of a sequential method takes."""
        if self.due:
            self.exchanges += 1
            if self.controller is not None:
                self.controller.asked(self.clock)
        self.clock += 1
        # Alone and without an average, nobody reads the center between two steps: `Worker.center` asks for x then.
        read = self.method.sequential and not (self.alone and not self.method.keeps_average)
        return self.local() if read else None

    def join(self, x: Tensor) -> None:
        """Start, or start again, from the center's value: a new incarnation with its own clock."""
        self.incarnation += 1
        self.clock = self.exchanges = 0
        if self.controller is not None:
            self.controller.join()
        self.replica.reset_(x)
        self.start()

    def state_dict(self) -> dict[str, Any]:
        """Return clock, incarnation, the method's vectors, parameters and optimizer state."""
        return {
            "clock": self.clock,
            "exchanges": self.exchanges,
            "incarnation": self.incarnation,
            "slots": self.slots,
            "replica": self.replica.state_dict(),
            "controller": None if self.controller is None else self.controller.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.clock, self.exchanges, self.incarnation = state["clock"], state["exchanges"], state["incarnation"]
        self.slots = [{name: vector.clone() for name, vector in slots.items()} for slots in state["slots"]]
        self.replica.load_state_dict(state["replica"])
        if self.controller is not None:
            self.controller.load_state_dict(state["controller"])
