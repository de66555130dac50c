"""MVASGD: SGD evaluated at a moving average of its iterates (NIPS 2015, section 5), sequential.

z_{t+1} = (1 − a) z_t + a x_t
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from easgd.errors import refuse
from easgd.methods.base import check_rate
from easgd.methods.sgd import SGD


@dataclass(frozen=True)
class MVASGD(SGD):
    """SGD with a moving average of x.

    Args:
        rate: the constant a.
    """

    name: ClassVar[str] = "MVASGD"

    rate: float = 0.001

    def __post_init__(self) -> None:
        """The rate is the average's."""
        check_rate(self.rate)
        if self.average not in (None, self.rate):
            raise refuse("average", self.average, f"{self.name} has its own", "write rate=0.001")
        object.__setattr__(self, "average", self.rate)
        super().__post_init__()
