"""MVADOWNPOUR: DOWNPOUR evaluated at a moving average of its center (NIPS 2015, section 5).

    z_{t+1} = (1 − a) z_t + a x̃_t,   a = 0.001

A time average around DOWNPOUR; see `Method` for the master's clock t.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from easgd.errors import refuse
from easgd.methods.base import check_rate
from easgd.methods.downpour import Downpour


@dataclass(frozen=True)
class MVADownpour(Downpour):
    """DOWNPOUR with a moving average of the center.

    Args:
        period: τ.
        rate: the constant a.
    """

    name: ClassVar[str] = "MVADOWNPOUR"

    rate: float = 0.001

    def __post_init__(self) -> None:
        """The rate is the average's."""
        check_rate(self.rate)
        if self.average not in (None, self.rate):
            raise refuse("average", self.average, f"{self.name} has its own", "write rate=0.001")
        object.__setattr__(self, "average", self.rate)
        super().__post_init__()
