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

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from easgd.flat import Replica
from easgd.methods.easgd import EASGD
from easgd.methods.momentum import check_momentum


@dataclass(frozen=True)
class EAMSGD(EASGD):
    """Elastic averaging SGD with local Nesterov momentum δ; with δ = 0 it is EASGD."""

    name: ClassVar[str] = "EAMSGD"

    momentum: float = 0.99

    def __post_init__(self) -> None:
        """Check the spring and the momentum."""
        super().__post_init__()
        check_momentum(self.momentum)

    @property
    def delta(self) -> float:
        """The local momentum δ."""
        return self.momentum

    def describe(self, workers: int | None = None, lr: float | None = None) -> str:
        """Return τ, β, α, ρ and δ as used."""
        return f"{super().describe(workers, lr)}, δ = {self.momentum:g}"

    def local(self, replica: Replica) -> Tensor:
        """The paper's x behind torch's look-ahead point."""
        return replica.position()
