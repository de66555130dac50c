"""What it costs to use the center's answer k steps after it was asked for (not in the paper, where k = 1).

An exchange then hides behind k steps. The center adds d = α(x − x̃) when it is asked, the worker subtracts it after k
steps. On F(x) = h x²/2, with a = 1 − ηh, a period of synchronous EASGD maps the mean y of the workers and the center:

    y ← a^τ y − α a^(τ−k) (y − x̃) + noise,      x̃ ← x̃ + β (y − x̃)

so only α a^(τ−k) depends on k, and trace and determinant of this 2 × 2 map give everything in closed form:

    A = a^τ − α a^(τ−k),  B = α a^(τ−k),   tr = A + 1 − β,   det = A(1 − β) − Bβ
    stable     |det| < 1,  |tr| < 1 + det,  and the differences between workers shrink: |A| < 1
               for 0 < ηh ≤ 1 this is (2 − β)(1 + a^τ) > 2α a^(τ−k); τ = k = 1 is the paper's condition 11
    variance   β²q (1 + det)/((1 − det)((1 + det)² − tr²)),   q = (ησ)²/p · (1 − a^2τ)/(1 − a²)

Round-robin and momentum have no such form; `Cycle(…, delay=k)` computes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from easgd.theory.checks import Array, count, numbers, plain
from easgd.theory.periods import Cycle


@dataclass(frozen=True)
class DelayCost:
    """What a delay changes, as ratios to the same settings with delay 1; nan where those are unstable themselves."""

    delay: int
    center: float  # stationary variance of the center
    worker: float  # stationary variance of a worker, mean over a period
    radius: float  # factor of the errors over a period; not a ratio


def delay_cost(
    method: str, workers: int, lr: float, *, period: int, delay: int, h: float = 1.0, **settings: Any
) -> DelayCost:
    """Return what a delay of k steps costs: how much more variance than with k = 1, and how fast errors still shrink.

    Args:
        method: "easgd" or "eamsgd".
        workers, lr, period, h, settings: as `Cycle`.
        delay: k, below the period.

    >>> cost = delay_cost("easgd", 4, 0.1, period=10, delay=5)
    >>> round(cost.center, 3), round(cost.worker, 3)
    (0.972, 1.082)
    """
    late = Cycle(method, workers, lr, period=period, delay=delay, h=h, **settings)
    paper = Cycle(method, workers, lr, period=period, h=h, **settings)
    with np.errstate(invalid="ignore"):
        center = float(np.divide(late.variance(), paper.variance()))
        worker = float(np.divide(late.worker_variance(), paper.worker_variance()))
    return DelayCost(late.knobs.delay, center, worker, float(late.radius()))


def worker_variance(method: str, workers: int, lr: ArrayLike, *, sigma: float = 1.0, **settings: Any) -> Any:
    """Return the stationary variance of a worker of EASGD or EAMSGD, the mean over a period; arguments as `Cycle`."""
    return Cycle(method, workers, lr, **settings).worker_variance(sigma)


def delay_stable(
    workers: ArrayLike, lr: ArrayLike, beta: ArrayLike, h: ArrayLike = 1.0, *, period: int = 1, delay: int = 1
) -> Any:
    """Return whether synchronous EASGD with period τ and delay k is stable, in closed form; arrays broadcast.

    >>> delay_stable(4, 0.1, 0.9, period=10, delay=9), delay_stable(4, 0.1, 1.7, period=10, delay=9)
    (True, False)
    """
    a, A, tr, det, b, p = _map(workers, lr, beta, h, period, delay)
    inside = (np.abs(det) < 1) & (np.abs(tr) < 1 + det) & ((np.abs(A) < 1) | (p == 1)) & (np.abs(a) < 1)
    return plain(inside & (b > 0))


def delay_beta_bound(workers: ArrayLike, lr: ArrayLike, h: ArrayLike = 1.0, *, period: int = 1, delay: int = 1) -> Any:
    """Return the β below which synchronous EASGD with period τ and delay k is stable; nan unless 0 < ηh ≤ 1.

        2p(1 + a^τ)/(p(1 + a^τ) + 2a^(τ−k)),   a = 1 − ηh

    It falls as k grows: what the answer moves has shrunk less when the next exchange comes.

    >>> [round(delay_beta_bound(4, 0.1, period=10, delay=k), 3) for k in (1, 5, 9)]
    [1.749, 1.641, 1.5]
    """
    p, (tau, k) = numbers("workers", workers, 1), _checked(period, delay)
    e = numbers("lr", lr, 0) * numbers("h", h, 0)
    a = np.where((e > 0) & (e <= 1), 1 - e, np.nan)
    held = p * (1 + a**tau)
    return plain(2 * held / (held + 2 * a ** (tau - k)))


def delay_variance(
    workers: ArrayLike,
    lr: ArrayLike,
    beta: ArrayLike,
    h: ArrayLike = 1.0,
    sigma: ArrayLike = 1.0,
    *,
    period: int = 1,
    delay: int = 1,
) -> Any:
    """Return the stationary variance of the center of synchronous EASGD, in closed form; ∞ if unstable.

    With τ = k = 1 it is Lemma 1 at t = ∞ (`center_moments`).
    """
    a, _, tr, det, b, p = _map(workers, lr, beta, h, period, delay)
    noise = (numbers("lr", lr, 0) * numbers("sigma", sigma, 0)) ** 2 / p
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        q = noise * (1 - a ** (2 * period)) / (1 - a**2)
        variance = b**2 * q * (1 + det) / ((1 - det) * ((1 + det) ** 2 - tr**2))
    return plain(np.where(delay_stable(workers, lr, beta, h, period=period, delay=delay), variance, np.inf))


def _map(
    workers: ArrayLike, lr: ArrayLike, beta: ArrayLike, h: ArrayLike, period: int, delay: int
) -> tuple[Array, ...]:
    """Return a, A, the trace, the determinant, β and p."""
    p, b, (tau, k) = numbers("workers", workers, 1), numbers("beta", beta, 0), _checked(period, delay)
    a = 1 - numbers("lr", lr, 0) * numbers("h", h, 0, open_low=True)
    with np.errstate(over="ignore"):
        B = b / p * a ** (tau - k)
        A = a**tau - B
    return a, A, A + 1 - b, A * (1 - b) - B * b, b, p


def _checked(period: int, delay: int) -> tuple[int, int]:
    """Check the two as `Cycle` does."""
    knobs = Cycle("easgd", 1, 1.0, period=count("period", period), delay=delay).knobs
    return knobs.period, knobs.delay
