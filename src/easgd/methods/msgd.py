"""MSGD: SGD with Nesterov's momentum (Sutskever et al., ICML 2013), sequential (NIPS 2015, section 5).

    v ← δv − η g(x + δv);  x ← x + v

torch stores x + δv; the center is x (`Replica.position`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from easgd.flat import Replica
from easgd.methods.momentum import check_momentum
from easgd.methods.sgd import SGD


@dataclass(frozen=True)
class MSGD(SGD):
    """One worker with momentum δ."""

    name: ClassVar[str] = "MSGD"

    momentum: float = 0.99

    def __post_init__(self) -> None:
        """Check the momentum."""
        super().__post_init__()
        check_momentum(self.momentum)

    @property
    def delta(self) -> float:
        """The momentum δ."""
        return self.momentum

    def describe(self, workers: int | None = None, lr: float | None = None) -> str:
        """Return δ as used."""
        return f"{super().describe(workers, lr)}, δ = {self.momentum:g}"

    def local(self, replica: Replica) -> Tensor:
        """The paper's x behind torch's look-ahead point."""
        return replica.position()
