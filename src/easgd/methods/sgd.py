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
    """One worker; x̃ is x after every step."""

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
