"""The strongly convex case: a linear recursion bounds three squared distances (supplement, theorem).

    a_t = E‖mean_i xⁱ_t − x*‖²,   b_t = mean_i E‖xⁱ_t − x*‖²,   c_t = E‖x̃_t − x*‖²,     s_t = (a_t, b_t, c_t)

    s_{t+1} ≤ R s_t + n   for   0 ≤ η ≤ 2(1 − α)/(μ + L),  0 ≤ α < 1,  0 ≤ β ≤ 1

Two remarks, not in the paper. The inequality may be iterated, s_t ≤ Rᵗ s_0 + …, only if R has no negative entry; its
entry 1 − γ₁ − γ₂ − α can be negative within the theorem's condition (small μ/L, large η). Nor need R be a contraction
there: `converges` tells whether the recursion tends to its fixed point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from easgd.errors import refuse
from easgd.theory.checks import Array, count, numbers
from easgd.theory.linear import spectral_radius


@dataclass(frozen=True)
class ConvexBound:
    """The recursion s ← R s + n of the theorem and its properties."""

    matrix: Array  # R, 3 × 3
    noise: Array  # n = (η²σ²/p, η²σ², 0)
    holds: bool  # the theorem's condition on η, α, β
    monotone: bool  # R ≥ 0, so that the inequality may be iterated
    radius: float  # largest absolute eigenvalue of R

    @property
    def converges(self) -> bool:
        """Whether the recursion tends to `fixed_point` from any start."""
        return self.radius < 1

    @property
    def fixed_point(self) -> Array:
        """The limit (I − R)⁻¹ n of the recursion; ∞ if it does not converge."""
        if not self.converges:
            return np.full(3, math.inf)
        return np.asarray(np.linalg.solve(np.eye(3) - self.matrix, self.noise))

    def after(self, t: int, start: ArrayLike) -> Array:
        """Return the bounds (a_t, b_t, c_t) after t steps from the start (a_0, b_0, c_0)."""
        s = numbers("start", start, 0)
        if s.shape != (3,):
            raise refuse("start", s.tolist(), "must be the three numbers a, b, c", "give (a_0, b_0, c_0)")
        for _ in range(count("t", t, 0)):
            s = self.matrix @ s + self.noise
        return s


def convex_bound(workers: int, lr: float, beta: float, mu: float, L: float, sigma: float = 1.0) -> ConvexBound:
    """Build the theorem's recursion for a μ-strongly convex F with L-Lipschitz gradient.

        γ₁ = 2ημL/(μ + L),   γ₂ = 2ηL(1 − 2√(μL)/(μ + L)),   α = β/p

    Args:
        workers: p.
        lr: η.
        beta: β.
        mu: μ, 0 < μ ≤ L.
        L: L.
        sigma: √ of the bound on E‖ξ‖².

    Returns:
        The recursion. Outside the theorem's condition it is returned with `holds` False.

    >>> bound = convex_bound(workers=4, lr=0.1, beta=0.8, mu=1.0, L=2.0)
    >>> bound.holds, bound.converges
    (True, True)
    """
    p, eta, b = count("workers", workers), float(numbers("lr", lr)), float(numbers("beta", beta))
    m, big = float(numbers("mu", mu, 0, open_low=True)), float(numbers("L", L, 0, open_low=True))
    if m > big:
        raise refuse("mu", mu, f"must not exceed L = {L}", "mu is the smallest curvature, L the largest")
    alpha = b / p
    gamma1 = 2 * eta * m * big / (m + big)
    gamma2 = 2 * eta * big * (1 - 2 * math.sqrt(m * big) / (m + big))
    R = np.array(
        [
            [1 - gamma1 - gamma2 - alpha, gamma2, alpha],
            [0.0, 1 - gamma1 - alpha, alpha],
            [b, 0.0, 1 - b],
        ]
    )
    variance = float(numbers("sigma", sigma, 0)) ** 2
    return ConvexBound(
        matrix=R,
        noise=np.array([eta**2 * variance / p, eta**2 * variance, 0.0]),
        holds=0 <= eta <= convex_lr_bound(p, b, m, big) and 0 <= alpha < 1 and 0 <= b <= 1,
        monotone=bool((R >= 0).all()),
        radius=float(spectral_radius(R)),
    )


def convex_lr_bound(workers: int, beta: float, mu: float, L: float) -> float:
    """Return the largest η of the theorem, 2(1 − α)/(μ + L)."""
    return 2 * (1 - beta / workers) / (mu + L)
