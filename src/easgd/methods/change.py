"""The change since the last pull, which local SGD and its descendants send.

    worker   every τ steps: send xⁱ − pulled; then, before the next gradient: xⁱ ← x̃, pulled ← x̃
             with a delay of k: the same after k more steps, xⁱ ← (1 − μ)x̃ + μxⁱ with the mixing factor μ

With fragments, a delay and mixing this is the overlap of streaming DiLoCo (Douillard et al., 2025).

Nothing is due at clock 0: a worker starts from the center, so `pulled` is its first x. Where all exchange at once,
`pulled` is x̃ itself, and the mean of the changes is mean(xⁱ) − x̃.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from easgd.errors import refuse
from easgd.flat import Replica
from easgd.methods.base import Method, Period, Slots


@dataclass(frozen=True)
class SendsChange(Method):
    """A method whose workers send their change since the last pull, and go on from the center."""

    waits: ClassVar[bool] = True
    delays: ClassVar[bool] = True

    period: Period = 10
    mixing: float = field(default=0.0, kw_only=True)
    """μ, the share of its own x that a worker keeps when the answer has come; 0 goes on from x̃."""

    def __post_init__(self) -> None:
        """Check the mixing factor."""
        super().__post_init__()
        if isinstance(self.mixing, bool) or not isinstance(self.mixing, int | float) or not 0 <= self.mixing <= 1:
            raise refuse("mixing", self.mixing, "it is a share, from 0 (all of x̃) to 1 (all of xⁱ)", "write mixing=0.5")

    def due(self, clock: int) -> bool:
        """Whether τ divides the clock; not at the start, where there is no change yet."""
        return clock > 0 and super().due(clock)

    def start(self, replica: Replica) -> Slots:
        """The worker has just taken x̃."""
        return {"pulled": replica.read().clone()}

    def send(self, replica: Replica, state: Slots) -> Tensor:
        """xⁱ − pulled."""
        return replica.read() - state["pulled"]

    def receive(self, replica: Replica, state: Slots, answer: Tensor) -> None:
        """xⁱ ← (1 − μ)x̃ + μxⁱ."""
        replica.write_(torch.lerp(answer, replica.read(), self.mixing) if self.mixing else answer)
        state["pulled"] = answer

    def finish(self, replica: Replica, state: Slots, answer: Tensor) -> None:
        """The same after a delay; without one it has been done."""
        if self.delay:
            self.receive(replica, state, answer.clone())

    def propose(self, center: Slots, message: Tensor, scale: float) -> Tensor:
        """The worker's change with its weight in the update."""
        return message * scale


@dataclass(frozen=True)
class AveragesChanges(SendsChange):
    """A method whose center takes the mean of the workers' changes, perhaps after a first phase with τ = 1."""

    first_phase: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        """Check the length of the first phase."""
        super().__post_init__()
        why = "in the first phase all of the vector is averaged after every step"
        if self.first_phase and self.fragments > 1:
            raise refuse("fragments", self.fragments, why, "write fragments=1, or first_phase=0")
        if self.first_phase and self.delay:
            raise refuse("delay", self.delay, why, "write delay=0, or first_phase=0")
        if isinstance(self.first_phase, bool) or not isinstance(self.first_phase, int) or self.first_phase < 0:
            bound = "it is a whole number of steps, 0 for none"
            raise refuse("first_phase", self.first_phase, bound, "write first_phase=100")

    def due(self, clock: int) -> bool:
        """After every step of the first phase, then every τ steps."""
        return 0 < clock <= self.first_phase or super().due(clock - self.first_phase)

    def scale(self, lr: float, living: int, launched: int) -> float:
        """1/p, for the mean over the workers that live."""
        return 1 / living

    def describe(self, workers: int | None = None, lr: float | None = None) -> str:
        """Return τ and the first phase, if there is one."""
        first = f" after {self.first_phase} steps with τ = 1" if self.first_phase else ""
        return f"{super().describe(workers, lr)}{first}"
