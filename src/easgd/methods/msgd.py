"""MSGD: SGD with Nesterov's momentum (Sutskever et al., ICML 2013), sequential (NIPS 2015, section 5).

    v ← δv − η g(x + δv);  x ← x + v

torch stores x + δv; the center is x (`Replica.position`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from easgd.methods.momentum import LocalMomentum
from easgd.methods.sgd import SGD


@dataclass(frozen=True)
class MSGD(LocalMomentum, SGD):
    """One worker with momentum δ.

    Example:
        >>> import torch, easgd
        >>> run = easgd.simulate(lambda x, worker, step: x, torch.ones(1, dtype=torch.float64),
        ...                      easgd.MSGD(momentum=0.5), lr=0.5, workers=1, steps=4)
        >>> [round(float(x), 4) for x in run.center]
        [1.0, 0.5, 0.125, -0.0312, -0.0547]
    """

    name: ClassVar[str] = "MSGD"
    paper: ClassVar[str] = "section 5"
    order: ClassVar[int] = 8
    colour: ClassVar[str | None] = "#000000"
    rates: ClassVar[Mapping[str, float]] = {"digits": 0.05, "cifar": 0.0005}
