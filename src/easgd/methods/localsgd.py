"""Local SGD: periodic averaging (McDonald et al., NAACL 2010; Stich, ICLR 2019), and post-local SGD (Lin et al., 2020).

Every worker takes τ steps of its own optimizer; then

    x̃  ← (1/p) Σⱼ xʲ
    xⁱ ← x̃

Every xⁱ left from the same x̃, so this is x̃ ← x̃ + (1/p) Σⱼ (xʲ − x̃). Asynchronously (`sync=False`) each worker's
xⁱ − pulled enters with the same 1/p when it comes.

Post-local SGD averages after each of the first N steps (`first_phase=N`), which for plain SGD is the step with the mean
gradient, and every τ steps from there on. The optimizer's own state (momentum, Adam's moments) stays with its worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from easgd.methods.change import AveragesChanges


@dataclass(frozen=True)
class LocalSGD(AveragesChanges):
    """Average the workers every τ steps.

    Args:
        period: τ, local steps between two averages.
        sync: average all workers at once; False adds a p-th of each worker's change when it comes.
        first_phase: steps at the beginning after each of which is averaged (post-local SGD).

    Example:
        >>> import torch, easgd
        >>> run = easgd.simulate(lambda x, worker, step: x, torch.ones(1, dtype=torch.float64),
        ...                      easgd.LocalSGD(period=2), lr=0.5, workers=2, steps=5, schedule="sync")
        >>> [round(float(x), 4) for x in run.center]
        [1.0, 1.0, 1.0, 0.25, 0.25, 0.0625]
    """

    name: ClassVar[str] = "LocalSGD"
    paper: ClassVar[str] = "Stich 2019; Lin et al. 2020"
    order: ClassVar[int] = 11
    colour: ClassVar[str | None] = "#d55e00"
    rates: ClassVar[Mapping[str, float]] = {"digits": 0.2, "cifar": 0.01}

    sync: bool = True

    def describe(self, workers: int | None = None, lr: float | None = None) -> str:
        """Return τ, the first phase, and whether all are averaged at once."""
        return f"{super().describe(workers, lr)}{', synchronous' if self.sync else ''}"
