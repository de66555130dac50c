"""ASGD: SGD evaluated at the mean of its iterates (Polyak and Juditsky, 1992), sequential (NIPS 2015, section 5).

z_{t+1} = (1 − 1/(t+1)) z_t + x_t/(t+1)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from easgd.methods.sgd import SGD


@dataclass(frozen=True)
class ASGD(SGD):
    """SGD with the plain mean of x over its steps.

    Example:
        >>> import torch, easgd
        >>> run = easgd.simulate(lambda x, worker, step: x, torch.ones(1, dtype=torch.float64),
        ...                      easgd.ASGD(), lr=0.5, workers=1, steps=4)
        >>> [round(float(x), 4) for x in run.average]
        [1.0, 1.0, 0.75, 0.5833, 0.4688]
    """

    name: ClassVar[str] = "ASGD"
    paper: ClassVar[str] = "section 5"
    order: ClassVar[int] = 9
    colour: ClassVar[str | None] = "#d55e00"
    shares_path_with: ClassVar[str | None] = "sgd"

    average: float | Literal["mean"] | None = "mean"
