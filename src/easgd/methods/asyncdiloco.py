"""Asynchronous DiLoCo with delayed Nesterov (Liu et al., "Asynchronous Local-SGD Training …", 2024).

A worker that has taken its τ inner steps sends g = pulled − xⁱ and goes on from the answer, whatever the others do:

    every message         x̃ ← x̃ − η g/N;  Δ ← Δ + g
    every N-th, besides   m ← μm + Δ/N;  x̃ ← x̃ − η μm;  Δ ← 0
    worker                xⁱ ← x̃;  pulled ← x̃

N counts the updates of the center. N = 1 is Nesterov's step with each message. With N = p, as many messages as there
are workers move the center as far as one synchronous outer step would; a smaller N moves it further.

A change that is s center updates old may count less: g is multiplied by (1 + s)^−a (Xie et al., "Asynchronous Federated
Optimization", 2019), with a = `staleness`; 0 takes all alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from easgd.errors import refuse
from easgd.methods.base import Period, Slots
from easgd.methods.change import SendsChange
from easgd.methods.outer import check_outer


@dataclass(frozen=True)
class AsyncDiLoCo(SendsChange):
    """DiLoCo without rounds: each worker's change moves the center when it comes.

    Args:
        period: τ, inner steps between two messages of a worker.
        outer_lr: η of the outer step.
        outer_momentum: μ of the delayed Nesterov momentum.
        every: N, center updates between two changes of the momentum.
        staleness: a, the power by which an old change counts less; 0: all alike.

    Example:
        >>> import torch, easgd
        >>> run = easgd.simulate(lambda x, worker, step: x, torch.ones(1, dtype=torch.float64),
        ...                      easgd.AsyncDiLoCo(period=2, every=2), lr=0.5, workers=2, steps=9)
        >>> [round(float(x), 4) for x in run.center]
        [1.0, 1.0, 1.0, 1.0, 1.0, 0.7375, 0.0025, 0.0025, 0.0025, -0.1911]
    """

    name: ClassVar[str] = "AsyncDiLoCo"
    paper: ClassVar[str] = "Liu et al. 2024"
    order: ClassVar[int] = 13
    colour: ClassVar[str | None] = "#56b4e9"
    rates: ClassVar[Mapping[str, float]] = {"digits": 0.2, "cifar": 0.01}
    synchronous: ClassVar[bool] = False

    period: Period = 100
    outer_lr: float = 0.7
    outer_momentum: float = 0.9
    every: int = 1
    staleness: float = 0.0

    def __post_init__(self) -> None:
        """Check the outer step."""
        super().__post_init__()
        check_outer(self.outer_lr, self.outer_momentum, None, None)
        if isinstance(self.every, bool) or not isinstance(self.every, int) or self.every < 1:
            raise refuse("every", self.every, "N is a whole number of center updates ≥ 1", "write every=workers")
        if isinstance(self.staleness, bool) or not 0 <= self.staleness < float("inf"):
            raise refuse("staleness", self.staleness, "the power a is finite and not negative", "write staleness=0.5")

    def weight(self, staleness: int) -> float:
        """(1 + s)^−a."""
        return float((1 + staleness) ** -self.staleness)

    def describe(self, workers: int | None = None, lr: float | None = None) -> str:
        """Return τ and the outer step."""
        old = f", staleness s weighs (1 + s)^-{self.staleness:g}" if self.staleness else ""
        outer = f"outer nesterov: η = {self.outer_lr:g}, μ = {self.outer_momentum:g}, N = {self.every}"
        return f"{super().describe(workers, lr)}, {outer}{old}"

    def center_slots(self, x: Tensor) -> Slots:
        """x̃, the momentum m and, where N > 1, the sum Δ."""
        slots = {**super().center_slots(x), "velocity": torch.zeros_like(x)}
        return slots if self.every == 1 else {**slots, "changes": torch.zeros_like(x)}

    def update_(self, center: Slots, d: Tensor, version: int) -> None:
        """Delayed Nesterov along d = −g."""
        self.average_(center, version)
        x, m, n = center["x"], center["velocity"], self.every
        x.add_(d, alpha=self.outer_lr / n)
        total = center["changes"].add_(d) if n > 1 else d
        if (version + 1) % n == 0:
            m.mul_(self.outer_momentum).add_(total, alpha=1 / n)
            x.add_(m, alpha=self.outer_lr * self.outer_momentum)
            if n > 1:
                total.zero_()
