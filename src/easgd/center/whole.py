"""The center in one process's memory: its vectors, and one `CenterState` over each fragment of them.

A method without fragments has one, over all of the vector. A fragment has its own clock: the time average's 1/(t+1)
counts the fragment's own updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor

from easgd.center.guard import Guard
from easgd.center.history import History, Journal
from easgd.center.layout import fragment_bounds, saved_clocks
from easgd.center.state import CenterState
from easgd.methods import Method, Slots


class Center:
    """x̃ and what belongs to it, cut into fragments.

    Args:
        method: whose rules are applied.
        slots: the vectors by name, "x" among them; they are changed in place.
        bounds: where each fragment begins and ends in these vectors; `fragment_bounds` if None.
        fused: see `CenterState`.
        guard: the guard's factor, see `easgd.center.guard`; every fragment has a guard of its own. 0 for none.
    """

    def __init__(
        self, method: Method, slots: Slots, *, bounds: Sequence[tuple[int, int]] | None = None, fused: bool = True,
        guard: float = 0.0,
    ) -> None:  # fmt: skip
        self.method, self.slots = method, slots
        self.bounds = list(bounds or fragment_bounds(slots["x"].numel(), method.fragments))
        self.guards = [Guard(0.0 if method.sequential else guard) for _ in self.bounds]
        self.parts = [
            CenterState(method, {name: slot[a:b] for name, slot in slots.items()}, fused=fused, guard=guard)
            for (a, b), guard in zip(self.bounds, self.guards, strict=True)
        ]

    @property
    def x(self) -> Tensor:
        """The center variable x̃."""
        return self.slots["x"]

    @property
    def average(self) -> Tensor | None:
        """The time average z, where the method keeps one."""
        return self.slots.get("average")

    @property
    def measured(self) -> Tensor:
        """What is evaluated: z where there is one, else x̃."""
        return self.slots.get("average", self.slots["x"])

    @property
    def version(self) -> int:
        """How many updates there have been, of all fragments together."""
        return sum(part.version for part in self.parts)

    def forget(self, rank: int) -> None:
        """Let the guards forget a worker that has died or starts anew."""
        for guard in self.guards:
            guard.forget(rank)

    def record(
        self, history: History, at: int = 0, *, epoch: int = 0, codec: str = "",
        began: Literal["open", "restore"] = "open",
    ) -> None:  # fmt: skip
        """Write down every change from now on; these vectors begin at element `at` of the run's."""
        for (a, b), part in zip(self.bounds, self.parts, strict=True):
            if a < b:
                part.journal = Journal(history, at + a, at + b, epoch)
                part.journal.opened(part, began, codec)

    def end_record(self) -> None:
        """Write down the last value, where changes were."""
        for part in self.parts:
            if part.journal is not None:
                part.journal.ended(part)
                part.journal = None

    def begin_average(self) -> None:
        """Forget the time average so far: it begins here and now."""
        for part in self.parts:
            part.begin_average()

    def snapshot(self) -> Slots:
        """Return a copy of the vectors."""
        return {name: vector.clone() for name, vector in self.slots.items()}

    def state_dict(self) -> dict[str, Any]:
        """Return the vectors and the clocks."""
        return {"slots": self.slots, "version": self.version, "clocks": [part.clock for part in self.parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        for part, clock in zip(self.parts, saved_clocks(state, len(self.parts)), strict=True):
            part.set_clock(clock)
        for name, vector in self.slots.items():
            vector.copy_(state["slots"][name])
