"""Limits of stability and best settings, computed from the period maps (not in the paper).

    stable_curvature   the largest curvature at which given settings are stable
    fastest            the settings with the smallest spectral radius over a range of curvatures (no noise)
    optimal            the settings with the smallest E(x̃ − x*)² after a given number of steps under gradient noise

On a quadratic only ηh matters, so searches run at h = 1 and the learning rate is divided by the curvature at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from easgd.errors import refuse
from easgd.theory.checks import Array, count, numbers
from easgd.theory.periods import Cycle

# Radii up to 1 + SLACK count as 1: α = 0 leaves the center where it is (exactly 1), and defective eigenvalues round.
SLACK = 1e-11


@dataclass(frozen=True)
class Best:
    """The settings that a search found and the value they reach."""

    lr: float
    moving_rate: float
    value: float  # `fastest`: worst factor per local step; `optimal`: mean squared error of the center


def stable_curvature(method: str, workers: int, lr: float, **settings: Any) -> float:
    """Return the largest h such that a method with these settings is stable for all curvatures up to h.

    Args:
        method, workers, lr, settings: as `Cycle`, without `h`.

    Returns:
        h with spectral radius 1; 0.0 if the method is unstable at ηh = 10⁻⁶, the smallest value tried.

    >>> round(stable_curvature("sgd", 1, lr=0.1), 6)
    20.0
    """
    eta = float(numbers("lr", lr, 0, open_low=True))

    def unstable(e: Array) -> NDArray[np.bool_]:
        return np.asarray(Cycle(method, workers, eta, h=e / eta, **settings).radius()) > 1 + SLACK

    # No method is stable for ηh > 4; gradient descent is up to 2.
    e = np.concatenate([np.geomspace(1e-6, 0.1, 48), np.linspace(0.125, 4, 48)])
    out = unstable(e)
    first = int(np.argmax(out))
    if out[0]:
        return 0.0
    if not out.any():
        return 4.0 / eta
    low, high = e[first - 1], e[first]
    while high - low > 1e-10 * high:
        inner = np.linspace(low, high, 18)[1:-1]
        bad = unstable(inner)
        cut = int(np.argmax(bad)) if bad.any() else len(inner)
        ends = np.concatenate([[low], inner, [high]])
        low, high = ends[cut], ends[cut + 1]
    return float(low / eta)


def stable_lr(method: str, workers: int, h: float = 1.0, **settings: Any) -> float:
    """Return the largest stable learning rate of a method at curvature h for a fixed moving rate α.

    Not for ADMM, where η changes ηρ as well: scan `admm_radius` instead.

    >>> round(stable_lr("sgd", 1, h=4.0), 6)
    0.5
    """
    if method == "admm":
        raise refuse("method", method, "η moves ηρ as well as ηh", "scan admm_radius over lr")
    return stable_curvature(method, workers, 1.0, **settings) / float(numbers("h", h, 0, open_low=True))


def fastest(
    method: str, workers: int, *, h: float = 1.0, condition: float = 10.0, schedule: str = "sync", **settings: Any
) -> Best:
    """Return the η (and α, if the method has one) with the smallest error factor per local step at the worst curvature.

    Args:
        method: a name of `METHODS` but ADMM.
        workers: p.
        h: largest curvature.
        condition: largest over smallest curvature.
        schedule: "sync" or "round-robin".
        settings: period, momentum, … as `Cycle`.

    >>> best = fastest("sgd", 1, h=1.0, condition=10.0)
    >>> round(best.lr, 3), round(best.value, 3)  # 2/(h + h/κ) and (κ − 1)/(κ + 1)
    (1.818, 0.818)
    """
    kappa = float(numbers("condition", condition, 1))
    curvatures = np.geomspace(1 / kappa, 1, 9 if kappa > 1 else 1)

    def worst(lr: Array, alpha: Array) -> Array:
        cycle = Cycle(
            method, workers, lr[..., None], moving_rate=alpha[..., None], h=curvatures, schedule=schedule, **settings
        )
        return np.asarray(np.asarray(cycle.rate()).max(axis=-1))

    return _search(method, worst, h, smallest_lr=1e-4)


def optimal(
    method: str,
    workers: int,
    steps: int,
    *,
    h: float = 1.0,
    sigma: float = 1.0,
    start: float = 1.0,
    schedule: str = "sync",
    period: int = 1,
    **settings: Any,
) -> Best:
    """Return the η (and α) with the smallest mean squared error of the center after `steps` local steps.

    Args:
        method: a name of `METHODS` but ADMM and the 1/(t + 1) averages.
        workers: p.
        steps: steps of each worker, rounded down to whole periods.
        h, sigma, start: curvature, gradient noise of one worker, distance of the start from the optimum.
        schedule, period, settings: as `Cycle`.

    >>> optimal("sgd", 1, steps=100).value > optimal("easgd", 4, steps=100).value
    True
    """
    cycles = count("steps", steps) // count("period", period)
    if cycles < 1:
        raise refuse("steps", steps, f"must be at least one period, {period}", "give more steps")
    # In units where h = 1: x' = x, η' = ηh, σ' = σ/h.
    noise = float(numbers("sigma", sigma, 0)) / float(numbers("h", h, 0, open_low=True))

    def error(lr: Array, alpha: Array) -> Array:
        cycle = Cycle(method, workers, lr, moving_rate=alpha, schedule=schedule, period=period, **settings)
        mean, variance = cycle.moments(cycles, noise, start)
        with np.errstate(over="ignore"):  # far outside the stable region; ∞ is no minimum
            return np.asarray(np.nan_to_num(np.asarray(mean) ** 2 + variance, nan=np.inf))

    return _search(method, error, h, smallest_lr=1e-6)


def _search(method: str, value: Callable[[Array, Array], Array], h: float, smallest_lr: float) -> Best:
    """Minimise over a grid in (log η, log α) that shrinks around the best point found."""
    if method == "admm":
        raise refuse("method", method, "its settings are (η, ρ), not (η, α)", "scan admm_radius")
    elastic = method in ("easgd", "eamsgd")
    low, high = np.log([smallest_lr, 1e-5]), np.log([2.0, 1.0])
    best, found = math.inf, (math.nan, math.nan)
    for _ in range(14):
        lr = np.exp(np.linspace(low[0], high[0], 15))
        alpha = np.exp(np.linspace(low[1], high[1], 15)) if elastic else np.zeros(1)
        grid = np.meshgrid(lr, alpha, indexing="ij")
        values = value(*grid)
        i, j = np.unravel_index(int(np.argmin(values)), values.shape)
        if values[i, j] < best:
            best, found = float(values[i, j]), (float(lr[i]), float(alpha[j]))
        # The grid shrinks by less than its spacing allows: the minimum may be in a narrow, curved valley.
        width = 0.4 * (high - low)
        middle = np.log([found[0], found[1] if elastic else 1.0])
        low, high = middle - width / 2, np.minimum(middle + width / 2, np.log([4.0, 1.0]))
    return Best(lr=found[0] / float(numbers("h", h, 0, open_low=True)), moving_rate=found[1], value=best)
