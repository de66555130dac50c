"""MVASGD: SGD evaluated at a moving average of its iterates (NIPS 2015, section 5), sequential.

z_{t+1} = (1 − a) z_t + a x_t
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from easgd.methods.moving import MovingAverage
from easgd.methods.sgd import SGD


@dataclass(frozen=True)
class MVASGD(MovingAverage, SGD):
    """SGD with a moving average of x (rate a)."""

    name: ClassVar[str] = "MVASGD"
    paper: ClassVar[str] = "section 5"
    order: ClassVar[int] = 10
    colour: ClassVar[str | None] = "#0072b2"
    shares_path_with: ClassVar[str | None] = "sgd"
