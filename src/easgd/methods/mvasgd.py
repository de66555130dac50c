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
    """SGD with a moving average of x (rate a).

    Example:
        >>> import torch, easgd
        >>> run = easgd.simulate(lambda x, worker, step: x, torch.ones(1, dtype=torch.float64),
        ...                      easgd.MVASGD(rate=0.5), lr=0.5, workers=1, steps=4)
        >>> [round(float(x), 4) for x in run.average]
        [1.0, 1.0, 0.75, 0.5, 0.3125]
    """

    name: ClassVar[str] = "MVASGD"
    paper: ClassVar[str] = "section 5"
    order: ClassVar[int] = 10
    colour: ClassVar[str | None] = "#0072b2"
    shares_path_with: ClassVar[str | None] = "sgd"
