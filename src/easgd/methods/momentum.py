"""Nesterov's momentum in the local step, which EAMSGD and MSGD share.

    v ← δv − η g(x + δv);  x ← x + v

torch's `SGD(nesterov=True)` stores the look-ahead point x + δv; the paper's x is behind it (`Replica.position`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from easgd.errors import refuse
from easgd.flat import Replica
from easgd.methods.base import Method


def check_momentum(momentum: float) -> None:
    """Refuse a momentum outside [0, 1)."""
    if not 0 <= momentum < 1:
        raise refuse("momentum", momentum, "δ must lie in [0, 1)", "write momentum=0.99")


class DefaultMomentum(float):
    """The δ of a method to which none was given: `easgd.attach` takes the optimizer's instead."""


@dataclass(frozen=True)
class LocalMomentum(Method):
    """What a method wears whose local step has the momentum δ."""

    momentum: float = field(default=DefaultMomentum(0.99), kw_only=True)

    def __post_init__(self) -> None:
        """Check the momentum."""
        super().__post_init__()
        check_momentum(self.momentum)

    @property
    def default_momentum(self) -> bool:
        """Whether δ was left to the default."""
        return isinstance(self.momentum, DefaultMomentum)

    @property
    def delta(self) -> float:
        """The local momentum δ."""
        return self.momentum

    def describe(self, workers: int | None = None, lr: float | None = None) -> str:
        """Return the settings as used, δ among them."""
        return f"{super().describe(workers, lr)}, δ = {self.momentum:g}"

    def local(self, replica: Replica) -> Tensor:
        """The paper's x behind torch's look-ahead point."""
        return replica.position()
