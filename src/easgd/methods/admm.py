"""ADMM with linearised local steps, round-robin or asynchronous (NIPS 2015, section 4, equations 6-8).

On worker i's turn, with λ scaled by 1/ρ as in the paper:

    λⁱ ← λⁱ − (xⁱ − x̃)                                   (6)
    xⁱ ← (xⁱ − η∇F(xⁱ) + ηρ(λⁱ + x̃)) / (1 + ηρ)          (7)
    x̃  ← (1/p) Σⱼ (xʲ − λʲ)                              (8)

Only worker i's term of the sum changes, so the worker sends the change of its own xⁱ − λⁱ and the center adds a p-th
of it. All start with λ = 0 and xⁱ = x̃, where (8) holds. p is the number that was launched, dead ones included: their
last terms stay in the sum, and a worker that starts anew brings a term of its own beside it, which shifts the fixed
point: ADMM is not for runs in which workers come and go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from easgd.errors import refuse
from easgd.flat import Replica
from easgd.methods.base import Method, Period, Slots


@dataclass(frozen=True, init=False)
class ADMM(Method):
    """Alternating directions; unlike EASGD it has no simple stability condition, and can diverge.

    Args:
        rho: ρ, the penalty.
        period: τ, local steps between two exchanges (plain steps in between).

    Example:
        >>> import torch, easgd
        >>> run = easgd.simulate(lambda x, worker, step: x, torch.ones(1, dtype=torch.float64),
        ...                      easgd.ADMM(rho=1.0), lr=0.5, workers=2, steps=6)
        >>> [round(float(x), 4) for x in run.center]
        [1.0, 0.8333, 0.6944, 0.5787, 0.4545, 0.3834, 0.2955]
    """

    name: ClassVar[str] = "ADMM"
    paper: ClassVar[str] = "equations 6-8"
    order: ClassVar[int] = 6
    colour: ClassVar[str | None] = "#000000"
    rates: ClassVar[Mapping[str, float]] = {"digits": 0.1, "cifar": 0.01}
    presets: ClassVar[Mapping[str, Any]] = {"rho": 1.0}
    waits: ClassVar[bool] = True

    rho: float = field(kw_only=True)

    def __init__(
        self, rho: float, period: Period = 1, *, average: float | Literal["mean"] | None = None, fragments: int = 1,
        delay: int | None = None,
    ) -> None:  # fmt: skip
        given = {"rho": rho, "period": period, "average": average, "fragments": fragments, "delay": delay}
        for name, value in given.items():
            object.__setattr__(self, name, value)
        self.__post_init__()
        if not 0 < rho < float("inf"):
            raise refuse("rho", rho, "the penalty ρ must be positive and finite", "write rho=1.0")

    def scale(self, lr: float, living: int, launched: int) -> float:
        """1/p, for the mean of equation 8."""
        return 1 / launched

    def describe(self, workers: int | None = None, lr: float | None = None) -> str:
        """Return τ and ρ as used."""
        return f"{super().describe(workers, lr)}, ρ = {self.rho:g}"

    def start(self, replica: Replica) -> Slots:
        """λ = 0; the term of the center's sum that is this worker's."""
        x = replica.read()
        return {"multiplier": torch.zeros_like(x), "term": x.clone()}

    def receive(self, replica: Replica, state: Slots, answer: Tensor) -> None:
        """Equation 6, with the x̃ just read; it is kept for equation 7."""
        state["multiplier"] -= replica.read() - answer

    def finish(self, replica: Replica, state: Slots, answer: Tensor) -> Tensor:
        """Equation 7: torch has done x − η∇F; what remains is linear in it. Then this worker's part of 8."""
        weight = replica.lr * self.rho
        x = (replica.read() + weight * (state["multiplier"] + answer)) / (1 + weight)
        replica.write_(x)
        term = x - state["multiplier"]
        change = term - state["term"]
        state["term"] = term
        return change

    def propose(self, center: Slots, message: Tensor, scale: float) -> Tensor:
        """A p-th of the worker's change."""
        return message * scale
