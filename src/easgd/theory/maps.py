"""The paper's linear maps on F(x) = h x²/2, for one worker's turn and for a cycle of all workers.

Section 4 of Zhang, Choromanska, LeCun, "Deep learning with Elastic Averaging SGD", NIPS 2015, and the drift matrix M of
its supplement. The paper has h = 1; on a quadratic the curvature enters only through ηh.

States:  ADMM (λ¹, x¹, …, λᵖ, xᵖ, x̃);  EASGD (x¹, …, xᵖ, x̃).  Workers are numbered from 0 here, from 1 in the paper.

The last two functions, not in the paper, give the same eigenvalues from one matrix instead of a product of p. The turns
of a round-robin cycle differ by a rotation S of the workers, Fⁱ = S⁻ⁱ F⁰ Sⁱ with Sᵖ = 1. Hence

    Fᵖ⁻¹ ⋯ F¹ F⁰ = (S F⁰)ᵖ,   and the cycle's eigenvalues are the p-th powers of those of S F⁰.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from easgd.errors import refuse
from easgd.theory.checks import Array, count, numbers


def admm_turn(worker: int, workers: int, lr: float, rho: float, h: float = 1.0) -> tuple[Array, Array, Array]:
    """Return the three maps (F₁, F₂, F₃) of one worker's turn: multiplier, local variable, center (eq. 6-8).

    Args:
        worker: number of the worker whose turn it is, 0 … p − 1.
        workers: p.
        lr: η.
        rho: ρ.
        h: curvature.

    Returns:
        Three (2p + 1) × (2p + 1) matrices; the turn is F₃ F₂ F₁.
    """
    p, _ = _numbered(worker, workers)
    eta, rho_ = float(numbers("lr", lr, 0)), float(numbers("rho", rho, 0))
    lam, x, center = 2 * worker, 2 * worker + 1, 2 * p
    F1, F2, F3 = np.eye(2 * p + 1), np.eye(2 * p + 1), np.eye(2 * p + 1)
    F1[lam, [x, center]] = -1.0, 1.0
    F2[x, [lam, x, center]] = np.array([eta * rho_, 1 - eta * h, eta * rho_]) / (1 + eta * rho_)
    F3[center, 0:-1:2], F3[center, 1:-1:2], F3[center, center] = -1 / p, 1 / p, 0.0
    return F1, F2, F3


def admm_map(workers: int, lr: float, rho: float, h: float = 1.0) -> Array:
    """Return ADMM's round-robin cycle F₃ᵖ F₂ᵖ F₁ᵖ ⋯ F₃¹ F₂¹ F₁¹ (section 4)."""
    p = count("workers", workers)
    result = np.eye(2 * p + 1)
    for worker in range(p):
        for F in admm_turn(worker, p, lr, rho, h):
            result = F @ result
    return result


def easgd_turn(worker: int, workers: int, lr: float, moving_rate: float, h: float = 1.0) -> Array:
    """Return the symmetric map Fⁱ of one worker's turn of EASGD (section 4), (p + 1) × (p + 1)."""
    p, i = _numbered(worker, workers)
    eta, alpha = float(numbers("lr", lr, 0)), float(numbers("moving_rate", moving_rate, 0))
    F = np.eye(p + 1)
    F[i, i] = 1 - eta * h - alpha
    F[i, p] = F[p, i] = alpha
    F[p, p] = 1 - alpha
    return F


def easgd_map(workers: int, lr: float, moving_rate: float, h: float = 1.0) -> Array:
    """Return EASGD's round-robin cycle Fᵖ ⋯ F¹ (section 4).

    >>> easgd_map(workers=1, lr=0.5, moving_rate=0.25)
    array([[0.25, 0.25],
           [0.25, 0.75]])
    """
    p = count("workers", workers)
    result = np.eye(p + 1)
    for worker in range(p):
        result = easgd_turn(worker, p, lr, moving_rate, h) @ result
    return result


def sync_map(workers: int, lr: float, moving_rate: float, h: float = 1.0) -> Array:
    """Return the drift matrix M of synchronous EASGD (supplement, proof of Lemma 1), (p + 1) × (p + 1)."""
    p = count("workers", workers)
    eta, alpha = float(numbers("lr", lr, 0)), float(numbers("moving_rate", moving_rate, 0))
    M = np.eye(p + 1) * (1 - alpha - eta * h)
    M[:p, p] = M[p, :p] = alpha
    M[p, p] = 1 - p * alpha
    return M


def admm_rotated(workers: int, lr: ArrayLike, rho: ArrayLike, h: float = 1.0) -> Array:
    """Return S F⁰ of ADMM for settings of shape [m]: maps [m, 2p, 2p] on (λ⁰, x⁰, λ¹, x¹, …).

    The state omits the center: after any turn x̃ = mean(xʲ − λʲ), so it only adds an eigenvalue 0.
    """
    eta, rho_ = np.atleast_1d(np.asarray(lr, float)), np.atleast_1d(np.asarray(rho, float))
    p = workers
    center = np.tile([-1 / p, 1 / p], p)
    lam = center.copy()
    lam[:2] += 1.0, -1.0
    # The rotation: worker 1 becomes the first, and worker 0, whose turn it was, the last.
    maps = np.zeros((eta.size, 2 * p, 2 * p))
    maps[:, np.arange(2 * p - 2), np.arange(2, 2 * p)] = 1.0
    maps[:, -2] = lam
    pull = eta * rho_ / (1 + eta * rho_)
    maps[:, -1] = pull[:, None] * (lam + center)
    maps[:, -1, 1] += (1 - eta * h) / (1 + eta * rho_)
    return maps


def easgd_rotated(workers: int, lr: ArrayLike, moving_rate: ArrayLike, h: float = 1.0) -> Array:
    """Return S F⁰ of EASGD for settings of shape [m]: maps [m, p + 1, p + 1] on (x⁰, …, xᵖ⁻¹, x̃)."""
    eta, alpha = np.atleast_1d(np.asarray(lr, float)), np.atleast_1d(np.asarray(moving_rate, float))
    p = workers
    maps = np.zeros((eta.size, p + 1, p + 1))
    maps[:, np.arange(p - 1), np.arange(1, p)] = 1.0
    maps[:, p - 1, 0] = 1 - eta * h - alpha
    maps[:, p - 1, p] = maps[:, p, 0] = alpha
    maps[:, p, p] = 1 - alpha
    return maps


def _numbered(worker: int, workers: int) -> tuple[int, int]:
    p, i = count("workers", workers), count("worker", worker, 0)
    if i >= p:
        raise refuse("worker", worker, f"must be below workers = {p}", "number workers from 0")
    return p, i
