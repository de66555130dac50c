"""The double average: the time average of the center, which averages the workers (supplement, Lemmas 2 and 3).

    z_{t+1} = (x̃_0 + … + x̃_t)/(t + 1),      √(tp)(z_t − x*) → N(0, V),   V = A⁻¹ Σ A⁻ᵀ

V does not depend on η, β or ρ: it is the best that any method can do with tp gradients. How fast the limit is reached
does depend on them: `double_average_variance`, which is not in the paper, gives the exact value at any t.
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
    """Return the asymptotic covariance V = A⁻¹ Σ A⁻ᵀ of √(tp)(z_t − x*) (Lemma 3; for 1 × 1 matrices σ²/h², Lemma 2).

    Args:
        A: Hessian, symmetric positive definite (a number counts as 1 × 1).
        Sigma: covariance of one worker's gradient noise, symmetric positive definite.

    >>> double_average_covariance(2.0, 1.0)
    array([[0.25]])
    """
    hessian, noise = positive_definite("A", A), positive_definite("Sigma", Sigma)
    if hessian.shape != noise.shape:
        raise refuse("Sigma's shape", noise.shape, f"must be A's, {hessian.shape}", "give matrices of one size")
    half = np.linalg.solve(hessian, noise)
    return np.asarray(np.linalg.solve(hessian, half.T).T)


def double_average_holds(workers: int, lr: float, beta: float, A: ArrayLike) -> bool:
    """Return whether Lemma 3 applies: η, β > 0 and condition 11 for the largest eigenvalue of A.

    It then holds for the smaller eigenvalues too, because 2 − ηh grows as h falls.
    """
    return bool(sync_stable(workers, lr, beta, float(np.linalg.eigvalsh(positive_definite("A", A))[-1])))


def double_average_variance(t: int, workers: int, lr: float, beta: float, h: float = 1.0, sigma: float = 1.0) -> float:
    """Return the exact variance of z_t in one dimension at finite t; t·p times it tends to σ²/h² (not in the paper).

    The state (y, x̃, x̃_0 + … + x̃_{t−1}) is linear in the noise, so its covariance follows a recursion as in Lemma 1.

    Args:
        t: number of center values averaged, 1 or more.
        workers, lr, beta, h, sigma: as `center_moments`.

    Returns:
        V[z_t], which does not depend on the start values.
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
    """Scale samples z_t − x* to √(tp)(z_t − x*), the quantity of Lemmas 2 and 3."""
    return np.sqrt(count("t", t) * count("workers", workers)) * numbers("z", z)
