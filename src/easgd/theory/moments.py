"""Mean and variance of the center of synchronous EASGD on a noisy quadratic (supplement, Lemma 1 and its corollary).

    gⁱ_t(x) = h x − ξⁱ_t,   E ξ = 0,  V ξ = σ²,   optimum at 0 (pass starting points as distances from the optimum).

The mean y of the workers and the center form a system of their own, with e = ηh (supplement, eq. 21-22):

    y ← (1 − e − α) y + α x̃ + η ξ̄,      x̃ ← β y + (1 − β) x̃,      V ξ̄ = σ²/p

Its two eigenvalues are the paper's γ and φ. The functions here iterate this 2 × 2 system by doubling.

The printed lemma agrees: eq. (lem1b) with t in its exponents, γ²ᵗ, is the sum over l = 1 … t − 1, which equals the
recursion for every t ≥ 1 (at t = 1 the variance is 0: x̃_1 does not depend on any noise). At t = 0 the printed bracket
is −1 − 1 + 2 = 0, also correct. The printed form is 0/0 at γ = φ and at γ = 1, the recursion is not. The derivation's
eq. (new) is the sum for x̃_{t+1}, hence its exponents 2(t + 1).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from easgd.errors import refuse
from easgd.theory.checks import Array, count, numbers, plain
from easgd.theory.linear import run


def roots(workers: ArrayLike, lr: ArrayLike, beta: ArrayLike, h: ArrayLike = 1.0) -> tuple[Any, Any]:
    """Return the two roots (γ, φ), γ ≥ φ, of λ² − (2 − a)λ + (1 − a + c²) (supplement, Lemma 1).

        a = ηh + (p + 1)α,   c² = ηh p α,   γ, φ = 1 − (a ∓ √(a² − 4c²))/2

    They are real: a² − 4c² = (ηh − β)² + 2α(ηh + β) + α² ≥ 0 for ηh, β ≥ 0. The right-hand side is computed, because
    the difference a² − 4c² loses digits where the roots are close.

    >>> gamma, phi = roots(workers=4, lr=0.1, beta=0.8)
    >>> round(gamma, 4), round(phi, 4)
    (0.9217, -0.0217)
    """
    p, e, b = _settings(workers, lr, beta, h)
    alpha = b / p
    gap = np.sqrt((e - b) ** 2 + 2 * alpha * (e + b) + alpha**2)
    a = e + b + alpha
    # 1 − γ = 2c²/(a + gap), which is (a − gap)/2 without cancellation where γ is near 1.
    slow = np.divide(2 * e * b, a + gap, out=np.zeros(np.broadcast_shapes(e.shape, b.shape, p.shape)), where=a > 0)
    return plain(1 - slow), plain(1 - (a + gap) / 2)


def center_moments(
    t: float,
    workers: ArrayLike,
    lr: ArrayLike,
    beta: ArrayLike,
    h: ArrayLike = 1.0,
    sigma: ArrayLike = 1.0,
    center: ArrayLike = 1.0,
    x: ArrayLike = 1.0,
) -> tuple[Any, Any]:
    """Return mean and variance of x̃_t − x* in synchronous EASGD (supplement, Lemma 1).

    Args:
        t: steps, 0, 1, … or `math.inf`.
        workers: p.
        lr: η ≥ 0.
        beta: β = pα ≥ 0.
        h: curvature, > 0.
        sigma: standard deviation of one worker's gradient noise.
        center: x̃_0 − x*.
        x: xⁱ_0 − x*, the same for all workers, or their mean.

    Returns:
        (mean, variance), floats for plain numbers, arrays for arrays that broadcast. At t = ∞ outside the stable region
        the variance is ∞ and the mean ∞ in size, with two exceptions: α = 0 leaves the center where it was, and η = 0
        has no noise and brings workers and center to their common average. A mean that oscillates forever is nan.

    >>> center_moments(0, workers=4, lr=0.1, beta=0.8)
    (1.0, 0.0)
    >>> mean, variance = center_moments(math.inf, workers=4, lr=0.1, beta=0.8)
    >>> mean, round(variance, 5)
    (0.0, 0.01022)
    """
    p, e, b = _settings(workers, lr, beta, h)
    eta, noise = numbers("lr", lr, 0), numbers("sigma", sigma, 0)
    start = numbers("center", center), numbers("x", x)
    p, e, b, eta, noise, center_, x_ = np.broadcast_arrays(p, e, b, eta, noise, *start)
    if t == math.inf:
        mean, variance = _limit(p, e, b, eta, noise, center_, x_)
    else:
        mean, variance = _finite(_clock(t), p, e, b, eta, noise, center_, x_)
    return plain(mean), plain(variance)


def center_mse(
    t: float,
    workers: ArrayLike,
    lr: ArrayLike,
    beta: ArrayLike,
    h: ArrayLike = 1.0,
    sigma: ArrayLike = 1.0,
    center: ArrayLike = 1.0,
    x: ArrayLike = 1.0,
) -> Any:
    """Return the mean squared error of the center, bias² + variance (∞ if it diverges); see `center_moments`."""
    mean, variance = center_moments(t, workers, lr, beta, h, sigma, center, x)
    return plain(np.asarray(mean) ** 2 + variance)


def mse_limit(lr: ArrayLike, beta: ArrayLike, h: ArrayLike = 1.0, sigma: ArrayLike = 1.0) -> Any:
    """Return lim_{p→∞} lim_{t→∞} p E(x̃_t − x*)² (supplement, corollary of Lemma 1).

        βηh/((2 − β)(2 − ηh)) · (2 − β − ηh + βηh)/(β + ηh − βηh) · σ²/h²

    Returns:
        The limit; ∞ unless 0 < β < 2 and 0 < ηh < 2 (condition 11 as p → ∞).
    """
    h_, s, b = numbers("h", h, 0, open_low=True), numbers("sigma", sigma, 0), numbers("beta", beta, 0)
    e = numbers("lr", lr, 0) * h_
    with np.errstate(divide="ignore", invalid="ignore"):
        both = b + e - b * e
        limit = b * e / ((2 - b) * (2 - e)) * (2 - both) / both * (s / h_) ** 2
    return plain(np.where((b > 0) & (b < 2) & (e > 0) & (e < 2), limit, np.inf))


def sgd_variance(lr: ArrayLike, h: ArrayLike = 1.0, sigma: ArrayLike = 1.0) -> Any:
    """Return the stationary variance of one worker's SGD, ησ²/(h(2 − ηh)); ∞ if ηh ≥ 2.

    >>> sgd_variance(lr=1.0)
    1.0
    """
    h_, s, eta = numbers("h", h, 0, open_low=True), numbers("sigma", sigma, 0), numbers("lr", lr, 0)
    with np.errstate(divide="ignore"):
        return plain(np.where(eta * h_ < 2, eta * s**2 / (h_ * (2 - eta * h_)), np.inf))


def center_speed(workers: int) -> float:
    """Return how fast the center of EASGD or EAMSGD moves where the loss is almost flat, against one worker alone.

    An exchange takes from a worker what it adds to the center, so only local steps change x̃ + Σxⁱ. Once the springs are
    drawn out these p + 1 points move together, carried by the steps of p: at p/(p + 1), whatever α, τ and δ are. With
    this fraction of a worker's speed goes all that takes long; `center_variance` is what is gained for it.

    >>> [center_speed(workers) for workers in (1, 4, 19)]
    [0.5, 0.8, 0.95]
    """
    p = count("workers", workers)
    return p / (p + 1)


def reduced_map(p: Array, e: Array, beta: Array) -> Array:
    """Return the 2 × 2 map of (y, x̃), stacked over the settings (supplement, eq. 21-22)."""
    alpha = beta / p
    M = np.empty((*np.broadcast_shapes(p.shape, e.shape, beta.shape), 2, 2))
    M[..., 0, 0], M[..., 0, 1] = 1 - e - alpha, alpha
    M[..., 1, 0], M[..., 1, 1] = beta, 1 - beta
    return M


def _finite(t: int, p: Array, e: Array, b: Array, eta: Array, sigma: Array, center: Array, x: Array) -> Any:
    Q = np.zeros((*p.shape, 2, 2))
    Q[..., 0, 0] = (eta * sigma) ** 2 / p
    power, cov = run(reduced_map(p, e, b), Q, t)
    with np.errstate(invalid="ignore", over="ignore"):
        mean = power[..., 1, 0] * x + power[..., 1, 1] * center
    variance = cov[..., 1, 1]
    # An overflow may end in ∞ − ∞ = nan; the magnitude is what overflowed, so report ∞.
    return np.where(np.isnan(mean), np.inf, mean), np.where(np.isnan(variance), np.inf, variance)


def _limit(p: Array, e: Array, b: Array, eta: Array, sigma: Array, center: Array, x: Array) -> Any:
    gamma, phi = (np.asarray(root) for root in roots(p, e, b))
    still = (x == 0) & (center == 0)
    common = (p * x + center) / (p + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        stable_variance = (
            b**2 * eta**2 / ((1 - gamma**2) * (1 - phi**2)) * (1 + gamma * phi) / (1 - gamma * phi) * sigma**2 / p
        )
    frozen, noiseless = b == 0, e == 0
    lost = np.where(phi == -1, np.nan, np.inf)  # at −1 it oscillates forever, below it grows
    mean = np.select(
        [frozen, still, phi <= -1, noiseless], [center, np.zeros_like(e), lost, common], default=np.zeros_like(e)
    )
    variance = np.select(
        [frozen | noiseless | (sigma == 0), phi <= -1], [np.zeros_like(e), np.full_like(e, np.inf)], stable_variance
    )
    return mean, variance


def _settings(workers: ArrayLike, lr: ArrayLike, beta: ArrayLike, h: ArrayLike) -> tuple[Array, Array, Array]:
    e = numbers("lr", lr, 0) * numbers("h", h, 0, open_low=True)
    return numbers("workers", workers, 1), e, numbers("beta", beta, 0)


def _clock(t: float) -> int:
    if isinstance(t, float) and t.is_integer():
        t = int(t)
    try:
        return count("t", t, 0)
    except ValueError:
        raise refuse("t", t, "must be a whole number of steps, 0 or more", "give an integer or math.inf") from None
