"""EASGD: elastic averaging SGD (Zhang, Choromanska, LeCun, NIPS 2015), Algorithm 1 and equations 1-4.

When τ divides the worker's clock, with x = xⁱ:

    d  = α(x − x̃)
    xⁱ ← xⁱ − d                 (a)
    x̃  ← x̃ + d                  (b)
    xⁱ ← xⁱ − η g(x)            the gradient at the *old* x

(a) and the gradient step add up in any order, so the worker may take its step first and subtract d when it comes:
the exchange hides behind forward and backward without changing a number. Synchronously (equations 3, 4), every d is
computed from the same x̃_t and x̃_{t+1} = x̃_t + Σᵢ α(xⁱ_t − x̃_t).

The spring is given in one of three ways: β (α = β/p, per exchange, with no τ in it; the paper's 0.9 by default),
the moving rate α itself, or ρ (α = ηρ, which follows the learning rate).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from easgd.errors import SettingError, refuse
from easgd.flat import Replica
from easgd.kernels.plain import elastic
from easgd.methods.base import Method, Period, Slots

DEFAULT_BETA = 0.9


@dataclass(frozen=True)
class EASGD(Method):
    """Elastic averaging SGD.

    Args:
        period: τ, local steps between two exchanges (of the same part, where there are `fragments`).
        beta: β = pα; the moving rate follows the number of living workers. 0.9 if none of the three is given.
        moving_rate: α, kept whatever the number of workers.
        rho: ρ, the elastic penalty; α = ηρ.
        sync: exchange all workers at once (equations 3, 4) on engines that can do both.
        fragments: P, parts of the vector that are exchanged in turn, one every τ/P steps.
        delay: k, the steps after which the answer is used; 1 is Algorithm 1, a longer one hides a slower link.

    Example:
        >>> import torch, easgd
        >>> run = easgd.simulate(lambda x, worker, step: x, torch.ones(1, dtype=torch.float64),
        ...                      easgd.EASGD(period=1, moving_rate=0.25), lr=0.5, workers=2, steps=6)
        >>> [round(float(x), 4) for x in run.center]
        [1.0, 1.0, 1.0, 0.875, 0.7812, 0.6797, 0.5957]
    """

    name: ClassVar[str] = "EASGD"
    paper: ClassVar[str] = "Algorithm 1, equations 1-4"
    order: ClassVar[int] = 0
    colour: ClassVar[str | None] = "#0072b2"
    with_momentum: ClassVar[str | None] = "EAMSGD"
    rates: ClassVar[Mapping[str, float]] = {"digits": 0.2, "cifar": 0.01}
    answers_with: ClassVar[Literal["difference", "center"]] = "difference"
    sends_local: ClassVar[bool] = True

    period: Period = 10
    beta: float | None = None
    moving_rate: float | None = None
    rho: float | None = None
    sync: bool = False

    def __post_init__(self) -> None:
        """Check the period and the spring."""
        super().__post_init__()
        given = {k: v for k in ("beta", "moving_rate", "rho") if (v := getattr(self, k)) is not None}
        if len(given) > 1:
            pair = " and ".join(f"{k} = {v}" for k, v in given.items())
            raise SettingError(f"{pair}: three names of one spring (β = pα, α = ηρ); give exactly one of them")
        if not given:
            object.__setattr__(self, "beta", DEFAULT_BETA)
        for name, value in given.items():
            if not 0 < value < float("inf"):
                raise refuse(name, value, "the spring pulls: it must be positive and finite", "write beta=0.9")
        if self.moving_rate is not None and self.moving_rate >= 1:
            raise refuse("moving_rate", self.moving_rate, "α must lie in (0, 1)", "write moving_rate=0.9/workers")

    def scale(self, lr: float, living: int, launched: int) -> float:
        """The moving rate α, from whichever of β, α, ρ was given."""
        if self.moving_rate is not None:
            return self.moving_rate
        if self.rho is not None:
            return lr * self.rho
        # Few survivors of many must not overshoot: at most, a worker and the center change places.
        return min(1.0, (self.beta or DEFAULT_BETA) / living)

    def check(self, workers: int, lr: float | None = None) -> None:
        """Refuse a spring that overshoots the center: α must lie in (0, 1)."""
        super().check(workers, lr)
        if self.beta is not None and self.beta >= workers:
            raise refuse(
                "beta", self.beta, f"with {workers} workers α = β/p = {self.beta / workers:.4g}, outside (0, 1)",
                f"write beta below {workers}",
            )  # fmt: skip
        if self.rho is not None and lr is not None and lr * self.rho >= 1:
            raise refuse(
                "rho", self.rho, f"with lr = {lr} α = ηρ = {lr * self.rho:.4g}, outside (0, 1)",
                f"write rho below {1 / lr:.4g}",
            )  # fmt: skip

    def describe(self, workers: int | None = None, lr: float | None = None) -> str:
        """Return τ, β, α and ρ as used; those that need p or η are formulas until these are given."""
        given = "beta" if self.beta is not None else "moving_rate" if self.moving_rate is not None else "rho"
        alpha: float | None = self.moving_rate
        if self.beta is not None and workers is not None:
            alpha = self.beta / workers
        elif self.rho is not None and lr is not None:
            alpha = lr * self.rho
        beta = self.beta if self.beta is not None else None if alpha is None or workers is None else alpha * workers
        rho = self.rho if self.rho is not None else None if alpha is None or not lr else alpha / lr
        shown = [
            ("β", "beta", beta, "pα"),
            ("α", "moving_rate", alpha, "β/p" if self.rho is None else "ηρ"),
            ("ρ", "rho", rho, "α/η"),
        ]
        parts = [
            f"{symbol} = {formula if value is None else f'{value:.6g}'}{' (set)' if name == given else ''}"
            for symbol, name, value, formula in shown
        ]
        mode = ", synchronous" if self.sync else ""
        return f"{super().describe()}, {', '.join(parts)}{mode}"

    def send(self, replica: Replica, state: Slots) -> Tensor:
        """The worker sends x; the center answers with the elastic difference."""
        return self.local(replica)

    def finish(self, replica: Replica, state: Slots, answer: Tensor) -> None:
        """xⁱ ← xⁱ − d, after the step whose gradient was taken at the old x."""
        replica.add_(answer, alpha=-1.0)

    def propose(self, center: Slots, message: Tensor, scale: float) -> Tensor:
        """d = α(x − x̃)."""
        return elastic(message, center["x"], scale)
