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

    average: float | Literal["mean"] | None = "mean"
