"""The double average: time average of the center, itself the average over workers (supplement, Lemmas 2 and 3).

    z_{t+1} = (x̃_0 + … + x̃_t)/(t + 1),      √(tp)(z_t − x*) → N(0, V),   V = A⁻¹ Σ A⁻ᵀ

V contains neither η nor β nor ρ: it is the best any method can do with tp gradients. How soon the limit is reached
does depend on them; `double_average_variance` gives the exact value at any t (ours, not in the paper).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from easgd.errors import refuse
from easgd.theory.checks import Array, count, numbers, positive_definite
from easgd.theory.linear import run
from easgd.theory.stability import sync_stable


def double_average_covariance(A: ArrayLike, Sigma: ArrayLike) -> Array:
    """Asymptotic covariance V = A⁻¹ Σ A⁻ᵀ of √(tp)(z_t − x*) (Lemma 3; with 1 × 1 matrices σ²/h², Lemma 2).

    Args:
        A: Hessian, symmetric positive definite (a number counts as 1 × 1).
        Sigma: covariance of one worker's gradient noise, symmetric positive definite.

    Returns:
        The n × n matrix V.
    """
    hessian, noise = positive_definite("A", A), positive_definite("Sigma", Sigma)
    if hessian.shape != noise.shape:
        raise refuse("Sigma's shape", noise.shape, f"must be A's, {hessian.shape}", "give matrices of one size")
    half = np.linalg.solve(hessian, noise)
    return np.asarray(np.linalg.solve(hessian, half.T).T)


def double_average_holds(workers: int, lr: float, beta: float, A: ArrayLike) -> bool:
    """Whether Lemma 3 applies: condition 11 for the largest eigenvalue of A (η, β > 0).

    For smaller eigenvalues it then holds too: 2 − ηh only grows as h falls.
    """
    return bool(sync_stable(workers, lr, beta, float(np.linalg.eigvalsh(positive_definite("A", A))[-1])))


def double_average_variance(t: int, workers: int, lr: float, beta: float, h: float = 1.0, sigma: float = 1.0) -> float:
    """Exact variance of z_t in one dimension at finite t; t·p times it tends to σ²/h² (ours).

    The state (y, x̃, x̃_0 + … + x̃_{t−1}) is linear in the noise, so its covariance runs like that of Lemma 1.

    Args:
        t: number of center values averaged, 1 or more.
        workers, lr, beta, h, sigma: as `center_moments`.

    Returns:
        V[z_t]; start values do not matter to it.
    """
    steps, p = count("t", t), count("workers", workers)
    e = float(numbers("lr", lr, 0)) * float(numbers("h", h, 0, open_low=True))
    b, s = float(numbers("beta", beta, 0)), float(numbers("sigma", sigma, 0))
    M = np.array([[1 - e - b / p, b / p, 0.0], [b, 1 - b, 0.0], [0.0, 1.0, 1.0]])
    Q = np.zeros((3, 3))
    Q[0, 0] = (lr * s) ** 2 / p
    _, cov = run(M, Q, steps)
    return float(cov[2, 2]) / steps**2 if np.isfinite(cov[2, 2]) else np.inf


def double_average_error(z: ArrayLike, t: int, workers: int) -> Any:
    """Normalise samples z_t − x* to √(tp)(z_t − x*), the quantity that Lemmas 2 and 3 speak of."""
    return np.sqrt(count("t", t) * count("workers", workers)) * numbers("z", z)
