"""Stability: spectral radii, and the paper's conditions as predicates and as bounds.

Section 4 of the paper (round-robin) and its supplement (synchronous, condition 11). Predicates and bounds take plain
numbers or arrays that broadcast; `h` is the curvature of F(x) = h x²/2, in many dimensions A's largest eigenvalue.

A remark on the paper's round-robin condition: it makes each symmetric map Fⁱ a contraction, hence it is sufficient for
any order of the workers. For the cyclic order it is also necessary if p is odd. If p is even, the cycle is stable a
little beyond it (see `easgd_radius`), because an even number of turns can undo a change of sign.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from easgd.theory.checks import Array, count, numbers, plain
from easgd.theory.linear import Progress, radii
from easgd.theory.maps import admm_rotated, easgd_rotated


def admm_radius(
    workers: int, lr: ArrayLike, rho: ArrayLike, *, h: float = 1.0, progress: Progress | None = None
) -> Any:
    """Return the largest absolute eigenvalue of ADMM's round-robin cycle (figure 1).

    Args:
        workers: p.
        lr: η, a number or an array.
        rho: ρ, likewise; both broadcast.
        h: curvature; the paper has 1.
        progress: called with the number of settings just done.

    Returns:
        A float for plain numbers, an array for arrays.

    >>> admm_radius(workers=3, lr=0.001, rho=2.5) > 1
    True
    """
    p = count("workers", workers)
    settings = numbers("lr", lr, 0), numbers("rho", rho, 0)
    build = partial(admm_rotated, p, h=float(numbers("h", h, 0)))
    return plain(_cycle(radii(build, settings, 2 * p, progress), p))


def easgd_radius(
    workers: int, lr: ArrayLike, moving_rate: ArrayLike, *, h: float = 1.0, progress: Progress | None = None
) -> Any:
    """Return the largest absolute eigenvalue of EASGD's round-robin cycle Fᵖ ⋯ F¹ (section 4).

    Arguments and result as `admm_radius`, with the moving rate α ≥ 0 in place of ρ.

    >>> easgd_radius(workers=3, lr=0.1, moving_rate=0.3) < 1
    True
    """
    p = count("workers", workers)
    settings = numbers("lr", lr, 0), numbers("moving_rate", moving_rate, 0)
    build = partial(easgd_rotated, p, h=float(numbers("h", h, 0)))
    return plain(_cycle(radii(build, settings, p + 1, progress), p))


def easgd_stable(lr: ArrayLike, moving_rate: ArrayLike, h: ArrayLike = 1.0) -> Any:
    """Return whether 0 ≤ ηh ≤ 2 and 0 ≤ α ≤ (4 − 2ηh)/(4 − ηh): round-robin EASGD is stable for any p (section 4)."""
    e, alpha = numbers("lr", lr) * numbers("h", h, 0), numbers("moving_rate", moving_rate)
    # Multiplied out to avoid dividing by 4 − ηh = 0.
    return plain((e >= 0) & (e <= 2) & (alpha >= 0) & (alpha * (4 - e) <= 4 - 2 * e))


def easgd_moving_rate_bound(lr: ArrayLike, h: ArrayLike = 1.0) -> Any:
    """Return the largest stable α of round-robin EASGD, (4 − 2ηh)/(4 − ηh); nan if ηh > 2, where none is stable."""
    e = numbers("lr", lr, 0) * numbers("h", h, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return plain(np.where(e <= 2, (4 - 2 * e) / (4 - e), np.nan))


def easgd_lr_bound(moving_rate: ArrayLike, h: ArrayLike = 1.0) -> Any:
    """Return the largest stable η of round-robin EASGD, 4(1 − α)/((2 − α)h); nan if α > 1.

    >>> round(easgd_lr_bound(moving_rate=0.5), 4)
    1.3333
    """
    alpha, curvature = numbers("moving_rate", moving_rate, 0), numbers("h", h, 0, open_low=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return plain(np.where(alpha <= 1, 4 * (1 - alpha) / ((2 - alpha) * curvature), np.nan))


def sync_stable(workers: ArrayLike, lr: ArrayLike, beta: ArrayLike, h: ArrayLike = 1.0) -> Any:
    """Return whether −1 < φ < γ < 1: the center of synchronous EASGD converges (supplement, condition 11).

    η > 0,  β > 0,  (2 − ηh)(2 − β) > 2β/p,  (2 − ηh) + (2 − β) > β/p
    """
    p, b = _workers(workers), numbers("beta", beta)
    e = numbers("lr", lr) * numbers("h", h, 0)
    return plain((e > 0) & (b > 0) & ((2 - e) * (2 - b) > 2 * b / p) & ((2 - e) + (2 - b) > b / p))


def sync_beta_bound(workers: ArrayLike, lr: ArrayLike, h: ArrayLike = 1.0) -> Any:
    """Return the β below which synchronous EASGD is stable, 2p(2 − ηh)/(p(2 − ηh) + 2); nan if ηh ≥ 2.

    This is the first inequality of condition 11 solved for β. It implies the second: with u = 2 − ηh > 0 the two bounds
    are 2u/(u + 2/p) and (u + 2)/(1 + 1/p), and cross-multiplied they differ by u² + 4/p > 0.
    """
    p, e = _workers(workers), numbers("lr", lr, 0) * numbers("h", h, 0)
    u = 2 - e
    with np.errstate(divide="ignore", invalid="ignore"):
        return plain(np.where(u > 0, 2 * p * u / (p * u + 2), np.nan))


def sync_lr_bound(workers: ArrayLike, beta: ArrayLike, h: ArrayLike = 1.0) -> Any:
    """Return the η below which synchronous EASGD is stable, (2 − 2β/(p(2 − β)))/h; nan if β ≥ 2p/(p + 1)."""
    p, b = _workers(workers), numbers("beta", beta, 0)
    curvature = numbers("h", h, 0, open_low=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        bound = (2 - 2 * b / (p * (2 - b))) / curvature
    return plain(np.where((b < 2) & (bound > 0), bound, np.nan))


def _cycle(turn: Array, p: int) -> Array:
    turn **= p  # in place: on a large grid this is the one big array
    return turn


def _workers(workers: ArrayLike) -> Array:
    return numbers("workers", workers, 1)
