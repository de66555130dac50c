"""MVADOWNPOUR: DOWNPOUR evaluated at a moving average of its center (NIPS 2015, section 5).

    z_{t+1} = (1 − a) z_t + a x̃_t,   a = 0.001

A time average around DOWNPOUR; see `Method` for the master's clock t.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from easgd.methods.downpour import Downpour
from easgd.methods.moving import MovingAverage


@dataclass(frozen=True)
class MVADownpour(MovingAverage, Downpour):
    """DOWNPOUR with a moving average of the center (period τ, rate a).

    Example:
        >>> import torch, easgd
        >>> run = easgd.simulate(lambda x, worker, step: x, torch.ones(1, dtype=torch.float64),
        ...                      easgd.MVADownpour(period=1, rate=0.5), lr=0.5, workers=2, steps=6)
        >>> [round(float(x), 4) for x in run.average]
        [1.0, 1.0, 1.0, 1.0, 0.75, 0.375, 0.0625]
    """

    name: ClassVar[str] = "MVADOWNPOUR"
    paper: ClassVar[str] = "section 5"
    order: ClassVar[int] = 5
    colour: ClassVar[str | None] = "#56b4e9"
    shares_path_with: ClassVar[str | None] = "downpour"
