"""ADOWNPOUR: DOWNPOUR evaluated at the mean of its center over time (NIPS 2015, section 5).

    z_{t+1} = (1 − 1/(t+1)) z_t + x̃_t/(t+1)

A time average around DOWNPOUR, from the very beginning; see `Method` for the master's clock t.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from easgd.methods.downpour import Downpour


@dataclass(frozen=True)
class ADownpour(Downpour):
    """DOWNPOUR with the plain mean of the center over its updates.

    Example:
        >>> import torch, easgd
        >>> run = easgd.simulate(lambda x, worker, step: x, torch.ones(1, dtype=torch.float64),
        ...                      easgd.ADownpour(period=1), lr=0.5, workers=2, steps=6)
        >>> [round(float(x), 4) for x in run.average]
        [1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.3125]
    """

    name: ClassVar[str] = "ADOWNPOUR"
    paper: ClassVar[str] = "section 5"
    order: ClassVar[int] = 4
    colour: ClassVar[str | None] = "#e69f00"
    shares_path_with: ClassVar[str | None] = "downpour"

    average: float | Literal["mean"] | None = "mean"
