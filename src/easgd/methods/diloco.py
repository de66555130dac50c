"""DiLoCo: an outer optimizer on the averaged change (Douillard et al., 2023); SlowMo and block momentum are settings.

Every worker takes τ steps of its own (inner) optimizer; then comes one outer step, the t-th, counted from 1:

    g  = x̃ − (1/p) Σⱼ xʲ                            the outer gradient
    sgd        m ← μm + g;  x̃ ← x̃ − η m
    nesterov   m ← μm + g;  x̃ ← x̃ − η (g + μm)       the default, η = 0.7, μ = 0.9
    adam       m ← μm + (1 − μ)g;  s ← β₂s + (1 − β₂)g²;  x̃ ← x̃ − η (m/(1 − μᵗ)) / (√(s/(1 − β₂ᵗ)) + ε)
    xⁱ ← x̃

These are torch.optim's rules on each element alone, so every stripe and shard of the center takes its part of the step.

    LocalSGD                                  outer="sgd", outer_lr=1
    SlowMo (Wang et al., ICLR 2020), α, β     outer="sgd", outer_lr=α, outer_momentum=β, at a constant inner rate
    block momentum (Chen, Huo, ICASSP 2016)   outer="sgd", outer_lr=ζ, outer_momentum=η; as Nesterov's: outer="nesterov"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from easgd.kernels.plain import add_
from easgd.methods.base import Period, Slots
from easgd.methods.change import AveragesChanges
from easgd.methods.outer import check_outer, filled, numbers


@dataclass(frozen=True)
class DiLoCo(AveragesChanges):
    """Local steps, then one step of an outer optimizer along the mean change.

    Args:
        period: τ, inner steps between two outer steps.
        outer: "sgd", "nesterov" or "adam"; torch's SGD or Adam, or a table like {"kind": "sgd", "lr": 1}, says it all.
        outer_lr: η; by default 1 for sgd, 0.7 for nesterov, 0.3 for adam.
        outer_momentum: μ; by default 0 for sgd, 0.9 for the others (adam's β₁).
        outer_beta2: β₂ of adam; 0.95.
        outer_eps: ε of adam; 0.1.
        first_phase: steps at the beginning after each of which the workers are averaged, without the outer optimizer.

    Example:
        >>> import torch, easgd
        >>> run = easgd.simulate(lambda x, worker, step: x, torch.ones(1, dtype=torch.float64),
        ...                      easgd.DiLoCo(period=2), lr=0.5, workers=2, steps=5, schedule="sync")
        >>> [round(float(x), 4) for x in run.center]
        [1.0, 1.0, 1.0, 0.0025, 0.0025, -0.4252]
    """

    name: ClassVar[str] = "DiLoCo"
    paper: ClassVar[str] = "Douillard et al. 2023"
    order: ClassVar[int] = 12
    colour: ClassVar[str | None] = "#e69f00"
    rates: ClassVar[Mapping[str, float]] = {"digits": 0.2, "cifar": 0.01}
    sync: ClassVar[bool] = True

    period: Period = 100
    outer: Any = "nesterov"
    outer_lr: float | None = None
    outer_momentum: float | None = None
    outer_beta2: float | None = None
    outer_eps: float | None = None

    def __post_init__(self) -> None:
        """Put the outer optimizer's settings into the fields, and check them."""
        super().__post_init__()
        given = {name: getattr(self, name) for name in ("outer_lr", "outer_momentum", "outer_beta2", "outer_eps")}
        for name, value in filled(self.outer, given).items():
            object.__setattr__(self, name, value)
        check_outer(self.outer_lr, self.outer_momentum, self.outer_beta2, self.outer_eps)

    def describe(self, workers: int | None = None, lr: float | None = None) -> str:
        """Return τ and the outer optimizer."""
        adam = f", β₂ = {self.outer_beta2:g}, ε = {self.outer_eps:g}" if self.outer == "adam" else ""
        outer = f"outer {self.outer}: η = {self.outer_lr:g}, μ = {self.outer_momentum:g}{adam}"
        return f"{super().describe(workers, lr)}, {outer}, synchronous"

    def center_slots(self, x: Tensor) -> Slots:
        """x̃ and the outer optimizer's vectors."""
        slots = super().center_slots(x)
        if self.outer_momentum or self.outer == "adam":
            slots["velocity"] = torch.zeros_like(x)
        if self.outer == "adam":
            slots["square"] = torch.zeros_like(x)
        return slots

    def update_(self, center: Slots, d: Tensor, version: int) -> None:
        """One outer step along d = −g; a plain mean in the first phase, whose exchanges are the first updates."""
        self.average_(center, version)
        t = version + 1 - self.first_phase
        if t < 1:
            add_(center["x"], d)
        elif self.outer == "adam":
            self._adam_(center, d, t)
        else:
            self._sgd_(center, d)

    def _sgd_(self, center: Slots, d: Tensor) -> None:
        x, (lr, mu) = center["x"], numbers(self.outer_lr, self.outer_momentum)
        if not mu:
            x.add_(d, alpha=lr)
            return
        m = center["velocity"].mul_(mu).add_(d)
        x.add_(torch.add(d, m, alpha=mu) if self.outer == "nesterov" else m, alpha=lr)

    def _adam_(self, center: Slots, d: Tensor, t: int) -> None:
        lr, mu, beta2, eps = numbers(self.outer_lr, self.outer_momentum, self.outer_beta2, self.outer_eps)
        m = center["velocity"].lerp_(d, 1 - mu)
        s = center["square"].mul_(beta2).addcmul_(d, d, value=1 - beta2)
        scale = (s / (1 - beta2**t)).sqrt_().add_(eps)
        center["x"].addcdiv_(m, scale, value=lr / (1 - mu**t))
