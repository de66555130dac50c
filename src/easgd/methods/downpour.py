"""DOWNPOUR (Dean et al., NIPS 2012) as in the EASGD paper's supplement, Algorithm 3.

When τ divides the worker's clock, *before* the gradient:

    x̃ ← x̃ + vⁱ;  xⁱ ← x̃;  vⁱ ← 0

and at every step xⁱ ← xⁱ − ηg(xⁱ), vⁱ ← vⁱ − ηg(xⁱ) with the same g. Between two exchanges both move by the same
amounts, so vⁱ = xⁱ − pulled, where `pulled` is the x̃ that was taken last: any local optimizer fits, and for plain
SGD it is the paper's v. The very first exchange has nothing to push: it is a pull, not a center update.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from easgd.flat import Replica
from easgd.methods.base import Method, Slots


@dataclass(frozen=True)
class Downpour(Method):
    """Push the accumulated change, pull the center, go on from it.

    Args:
        period: τ, local steps between two exchanges (the paper finds every τ ≥ 16 unstable).

    Example:
        >>> import torch, easgd
        >>> run = easgd.simulate(lambda x, worker, step: x, torch.ones(1, dtype=torch.float64),
        ...                      easgd.Downpour(period=1), lr=0.5, workers=2, steps=6)
        >>> [round(float(x), 4) for x in run.center]
        [1.0, 1.0, 1.0, 0.5, 0.0, -0.25, -0.25]
    """

    name: ClassVar[str] = "DOWNPOUR"
    paper: ClassVar[str] = "Algorithm 3"
    order: ClassVar[int] = 2
    colour: ClassVar[str | None] = "#009e73"
    with_momentum: ClassVar[str | None] = "MDownpour"
    rates: ClassVar[Mapping[str, float]] = {"digits": 0.1, "cifar": 0.001}
    waits: ClassVar[bool] = True

    def start(self, replica: Replica) -> Slots:
        """Of several fragments all but the first take steps before their first exchange: from the x̃ at the start on."""
        return {} if self.fragments == 1 else {"pulled": replica.read().clone()}

    def send(self, replica: Replica, state: Slots) -> Tensor | None:
        """v = x − pulled; nothing before the first pull."""
        return replica.read() - state["pulled"] if "pulled" in state else None

    def receive(self, replica: Replica, state: Slots, answer: Tensor) -> None:
        """xⁱ ← x̃; v ← 0."""
        replica.write_(answer)
        state["pulled"] = answer
