"""MDOWNPOUR: DOWNPOUR with Nesterov's momentum at the master (NIPS 2015 supplement), Algorithms 4 and 5, as printed.

    worker   xⁱ ← x̃;  g = g(xⁱ);  send g
    master   v ← δv − ηg;  x̃ ← x̃ + δv

The message is the worker's change x − pulled, which for plain SGD is −ηg. Note the printed x̃ ← x̃ + δv: Nesterov's
scheme at the look-ahead point would be x̃ ← x̃ − ηg + δv. τ = 1 only: the paper finds it unclear what τ > 1 should mean.
The first exchange is a pull.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from easgd.errors import refuse
from easgd.kernels.plain import momentum_
from easgd.methods.base import Slots
from easgd.methods.downpour import Downpour
from easgd.methods.momentum import check_momentum


@dataclass(frozen=True)
class MDownpour(Downpour):
    """DOWNPOUR whose center keeps a velocity.

    Args:
        momentum: δ of the master's update.

    Example:
        >>> import torch, easgd
        >>> run = easgd.simulate(lambda x, worker, step: x, torch.ones(1, dtype=torch.float64),
        ...                      easgd.MDownpour(momentum=0.5), lr=0.5, workers=2, steps=6)
        >>> [round(float(x), 4) for x in run.center]
        [1.0, 1.0, 1.0, 0.75, 0.375, 0.0, -0.2812]
    """

    name: ClassVar[str] = "MDOWNPOUR"
    paper: ClassVar[str] = "Algorithms 4, 5 (as printed)"
    order: ClassVar[int] = 3
    colour: ClassVar[str | None] = "#cc79a7"
    rates: ClassVar[Mapping[str, float]] = {"digits": 0.01, "cifar": 1e-5}
    fixed_period: ClassVar[bool] = True

    momentum: float = 0.99

    def __post_init__(self) -> None:
        """Check that τ = 1, and the momentum."""
        super().__post_init__()
        if self.period != 1:
            raise refuse("period", self.period, "MDOWNPOUR is defined for τ = 1 only", "write period=1, or Downpour")
        check_momentum(self.momentum)

    def describe(self, workers: int | None = None, lr: float | None = None) -> str:
        """Return τ and the master's δ."""
        return f"{super().describe(workers, lr)}, δ = {self.momentum:g} at the center"

    def center_slots(self, x: Tensor) -> Slots:
        """x̃ and the master's v = 0."""
        return {**super().center_slots(x), "velocity": torch.zeros_like(x)}

    def absorb_(self, center: Slots, d: Tensor) -> None:
        """v ← δv + d;  x̃ ← x̃ + δv."""
        momentum_(center["x"], center["velocity"], d, self.momentum)
