"""EAMSGD: EASGD with Nesterov's momentum in the local step (NIPS 2015), Algorithm 2.

When τ divides the worker's clock, with x = xⁱ:

    d  = α(x − x̃);  xⁱ ← xⁱ − d;  x̃ ← x̃ + d         the same exchange as EASGD's
    v  ← δv − η g(x + δv)                             the force is not in v
    xⁱ ← xⁱ + v

torch's `SGD(nesterov=True)` stores the look-ahead point y = x + δv, where the gradient is taken:

    y_{t+1} = x_{t+1} + δv_{t+1} = y_t − ηg + δv_{t+1}

so the force must come from x = y − δv (`Replica.position`), and moving x by −d moves y by −d.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from easgd.methods.base import Period
from easgd.methods.easgd import EASGD
from easgd.methods.momentum import LocalMomentum


@dataclass(frozen=True)
class EAMSGD(LocalMomentum, EASGD):
    """Elastic averaging SGD with local Nesterov momentum δ; with δ = 0 it is EASGD.

    Example:
        >>> import torch, easgd
        >>> run = easgd.simulate(lambda x, worker, step: x, torch.ones(1, dtype=torch.float64),
        ...                      easgd.EAMSGD(period=1, moving_rate=0.25, momentum=0.5), lr=0.5, workers=2, steps=6)
        >>> [round(float(x), 4) for x in run.center]
        [1.0, 1.0, 1.0, 0.875, 0.7812, 0.6484, 0.541]
    """

    name: ClassVar[str] = "EAMSGD"
    paper: ClassVar[str] = "Algorithm 2"
    order: ClassVar[int] = 1
    colour: ClassVar[str | None] = "#d55e00"
    sends_local: ClassVar[bool] = True
    rates: ClassVar[Mapping[str, float]] = {"digits": 0.1, "cifar": 0.005}

    # The two bases disagree: without a line of its own, dataclasses would take τ = 1 from the momentum's.
    period: Period = 10
