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
    """One worker with momentum δ."""

    name: ClassVar[str] = "MSGD"
    paper: ClassVar[str] = "section 5"
    order: ClassVar[int] = 8
    colour: ClassVar[str | None] = "#000000"
    rates: ClassVar[Mapping[str, float]] = {"digits": 0.05, "cifar": 0.0005}
