"""The center in this process's own memory: what the simulator uses, and the reference for every other home of x̃."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from easgd.methods import Method


class MemoryCenter:
    """x̃, the method's vectors beside it, and the master's clock.

    An exchange is atomic: one message is answered from one state of the center. Nothing non-finite enters it: such a
    message is refused, which the answer None says.
    """

    def __init__(self, x: Tensor, method: Method) -> None:
        self.method = method
        self.slots = method.center_slots(x)
        self.version = 0
        self.averaged_from = 0

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

    def exchange(
        self, message: Tensor | None, scale: float, through: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor | None:
        """Apply one message and answer it; a message of None is a pull. None: refused, the center is unchanged.

        A method that is answered with x̃ gets it in its message's memory. `through` is what becomes of a change d on its
        way to the worker: the center takes the same.
        """
        if message is None:
            return self.x.clone()
        if not finite(message):
            return None
        d = self.method.propose(self.slots, message, scale)
        d = d if through is None else through(d)
        self._update(d)
        return d if self.method.answers_with == "difference" else message.copy_(self.x)

    def push(self, message: Tensor, scale: float) -> bool:
        """Apply one message that wants no answer; False if it was refused."""
        if not finite(message):
            return False
        self._update(self.method.propose(self.slots, message, scale))
        return True

    def exchange_all(self, messages: Sequence[Tensor | None], scales: Sequence[float]) -> list[Tensor | None]:
        """Answer all messages from the same x̃, in one center update (equations 3 and 4)."""
        accepted = [m is None or finite(m) for m in messages]
        differences = [
            self.method.propose(self.slots, m, scale) if m is not None and ok else None
            for m, scale, ok in zip(messages, scales, accepted, strict=True)
        ]
        self._update_sum([d for d in differences if d is not None])
        if self.method.answers_with == "difference":
            return differences
        return [self.x.clone() if ok else None for ok in accepted]

    def push_all(self, messages: Sequence[Tensor], scales: Sequence[float]) -> None:
        """Apply all messages in one center update; those that are not finite are left out."""
        pairs = zip(messages, scales, strict=True)
        self._update_sum([self.method.propose(self.slots, m, scale) for m, scale in pairs if finite(m)])

    def _update_sum(self, differences: list[Tensor]) -> None:
        if not differences:
            return
        # In the order of the ranks: a floating-point sum depends on it, and two runs must not differ.
        total = differences[0].clone()
        for d in differences[1:]:
            total += d
        self._update(total)

    def _update(self, d: Tensor) -> None:
        self.method.update_(self.slots, d, self.version - self.averaged_from)
        self.version += 1

    def begin_average(self) -> None:
        """Forget the average so far: it begins here and now."""
        if self.average is not None:
            self.average.copy_(self.x)
            self.averaged_from = self.version

    def state_dict(self) -> dict[str, Any]:
        """Return the vectors and the master's clock."""
        return {"slots": self.slots, "version": self.version, "averaged_from": self.averaged_from}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        for name, vector in self.slots.items():
            vector.copy_(state["slots"][name])
        self.version, self.averaged_from = state["version"], state.get("averaged_from", 0)


def finite(message: Tensor) -> bool:
    """Whether every element is finite, and small enough that no number of updates can overflow the center.

    Σm² settles both in one pass: it overflows for elements beyond 1e19 (1e154 in float64), far outside any training.
    """
    return math.isfinite(torch.dot(message, message).item())
