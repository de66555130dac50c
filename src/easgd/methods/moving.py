"""The moving average of the center with a constant rate, which MVADOWNPOUR and MVASGD share.

z_{t+1} = (1 − a) z_t + a x̃_t
"""

from __future__ import annotations

from dataclasses import dataclass, field

from easgd.errors import refuse
from easgd.methods.base import Method


@dataclass(frozen=True)
class MovingAverage(Method):
    """What a method wears that is evaluated at a moving average of its center.

    Args:
        rate: the constant a.
    """

    rate: float = field(default=0.001, kw_only=True)

    def __post_init__(self) -> None:
        """The rate is the average's."""
        if isinstance(self.rate, bool) or not isinstance(self.rate, int | float) or not 0 < self.rate <= 1:
            raise refuse("rate", self.rate, "the averaging rate a must lie in (0, 1]", "write rate=0.001")
        if self.average not in (None, self.rate):
            raise refuse("average", self.average, f"{self.name} has its own", "write rate=0.001")
        object.__setattr__(self, "average", self.rate)
        super().__post_init__()
