"""SGD, the sequential baseline with a constant learning rate (NIPS 2015, section 5).

    x ← x − η g(x)

One worker, no exchange: the center is the worker's own x.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from easgd.methods.base import Method, Slots


@dataclass(frozen=True)
class SGD(Method):
    """One worker; x̃ is x after every step.

    Example:
        >>> import torch, easgd
        >>> run = easgd.simulate(lambda x, worker, step: x, torch.ones(1, dtype=torch.float64),
        ...                      easgd.SGD(), lr=0.5, workers=1, steps=4)
        >>> [round(float(x), 4) for x in run.center]
        [1.0, 0.5, 0.25, 0.125, 0.0625]
    """

    name: ClassVar[str] = "SGD"
    paper: ClassVar[str] = "section 5"
    order: ClassVar[int] = 7
    colour: ClassVar[str | None] = "#7f7f7f"
    with_momentum: ClassVar[str | None] = "MSGD"
    rates: ClassVar[Mapping[str, float]] = {"digits": 0.2, "cifar": 0.01}
    sequential: ClassVar[bool] = True

    def absorb_(self, center: Slots, d: Tensor) -> None:
        """x̃ ← x."""
        center["x"].copy_(d)
