"""ASGD: SGD evaluated at the mean of its iterates (Polyak and Juditsky, 1992), sequential (NIPS 2015, section 5).

z_{t+1} = (1 − 1/(t+1)) z_t + x_t/(t+1)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from easgd.methods.sgd import SGD


@dataclass(frozen=True)
class ASGD(SGD):
    """SGD with the plain mean of x over its steps."""

    name: ClassVar[str] = "ASGD"
    paper: ClassVar[str] = "section 5"
    order: ClassVar[int] = 9
    colour: ClassVar[str | None] = "#d55e00"
    shares_path_with: ClassVar[str | None] = "sgd"

    average: float | Literal["mean"] | None = "mean"
