"""The vector exchanged in P fragments, one every τ/P steps, each answer used k steps later (not in the paper).

The exchange is elementwise. Where the Hessian is diagonal nothing ties one fragment to another: each is the map of
`Cycle`, with the same radius and the same variance of the center, and only the moment of its exchange differs. A
Hessian A that couples the fragments mixes their phases. This module computes that case exactly, for A of any size that
a matrix of its period fits in memory.

Without delay and momentum the paper's bound holds for every A and every P, in any order of the workers: with F_j the
turn that exchanges fragment j (Π_j projects on it) and h the largest eigenvalue of A,

    1 − F_j = ηA ⊕ 0 + α Π_j ⊗ K  ≤  ηh ⊕ 0 + α 1 ⊗ K,   K = (1, −1; −1, 1)

because Π_j ≤ 1 and K ≥ 0. The right-hand side is at most 2 under the condition of section 4, so each F_j contracts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from easgd.errors import refuse
from easgd.theory.checks import Array, count, numbers, positive_definite
from easgd.theory.linear import run, spectral_radius
from easgd.theory.periods import FOREVER, Cycle


class FragmentCycle:
    """One period of EASGD or EAMSGD on F(x) = xᵀAx/2, the vector in P fragments.

    The state of a worker is (x, v, d): its vector, its velocity, and the answers that it has not used yet.

    Args:
        hessian: A, [n, n], positive definite.
        fragments: P, parts of nearly equal size in order; or the number of the fragment of each of the n elements.
        workers, lr, period, moving_rate, momentum, delay, schedule: as `Cycle`, plain numbers.

    >>> cycle = FragmentCycle([[1.0, 0.4], [0.4, 2.0]], 2, workers=3, lr=0.1, period=4, delay=2)
    >>> bool(cycle.radius() < 1)
    True
    """

    def __init__(
        self,
        hessian: ArrayLike,
        fragments: int | Sequence[int],
        workers: int,
        lr: float,
        *,
        period: int = 1,
        moving_rate: float | None = None,
        momentum: float = 0.0,
        delay: int = 1,
        schedule: str = "sync",
    ) -> None:
        A = positive_definite("hessian", hessian)
        knobs = Cycle(
            "eamsgd", workers, lr, period=period, moving_rate=moving_rate, momentum=momentum, delay=delay,
            schedule=schedule,
        ).knobs  # fmt: skip
        self.period, self.delay, self.workers, self.schedule = knobs.period, knobs.delay, knobs.workers, schedule
        self.alpha, self.momentum, self.lr = float(knobs.alpha.item()), float(momentum), float(lr)
        self.A, self.n = A, len(A)
        self.fragment = _assigned(fragments, self.n)
        parts = int(self.fragment.max()) + 1
        if self.period % parts:
            raise refuse("fragments", parts, f"must divide the period τ = {self.period}", "change one of the two")
        self.phase = self.fragment * (self.period // parts)

    def radius(self) -> float:
        """Return the largest absolute eigenvalue of the period."""
        if self.schedule != "sync":
            return float(spectral_radius(self._cycle(self.workers)[0]))
        common = float(spectral_radius(self._cycle(1, self.workers)[0]))
        # In the differences between workers the center does not move: its eigenvalues 1 are not theirs.
        apart = self._cycle(1, 0)[0][: 3 * self.n, : 3 * self.n]
        return max(common, float(spectral_radius(apart)) if self.workers > 1 else 0.0)

    def variance(self, sigma: float = 1.0) -> Array:
        """Return the stationary variance [n] of the center's elements under gradient noise; ∞ if unstable."""
        if self.radius() >= 1:
            return np.full(self.n, np.inf)
        together = self.schedule == "sync"
        M, Q = self._cycle(1, self.workers) if together else self._cycle(self.workers)
        scale = float(numbers("sigma", sigma, 0)) ** 2 / (self.workers if together else 1)
        return np.diagonal(run(M, scale * Q, FOREVER)[1])[-self.n :].copy()

    def _cycle(self, workers: int, weight: int = 1) -> tuple[Array, Array]:
        """Return the period's matrix on (x, v, d of each worker, x̃) and the covariance of its noise at σ = 1."""
        n, size = self.n, (3 * workers + 1) * self.n
        M, Q = np.eye(size), np.zeros((size, size))
        for t in range(self.period):
            step = self._step(t, weight)
            for i in range(workers):
                own = np.r_[3 * n * i : 3 * n * (i + 1), size - n : size]
                S = np.eye(size)
                S[np.ix_(own, own)] = step
                M, Q = S @ M, S @ Q @ S.T
                moved = own[: 2 * n]
                Q[np.ix_(moved, moved)] += self.lr**2 * np.kron(np.ones((2, 2)), np.eye(n))
        return M, Q

    def _step(self, t: int, weight: int) -> Array:
        """Return one worker's step at clock t on (x, v, d, x̃); its exchange counts `weight` times at the center."""
        n, one = self.n, np.eye(self.n)
        x, v, d, center = np.split(np.eye(4 * n), 4)
        asked = (self.phase == t)[:, None]
        d = np.where(asked, self.alpha * (x - center), d)
        center = center + weight * np.where(asked, d, 0.0)
        v = self.momentum * (one - self.lr * self.A) @ v - self.lr * self.A @ x
        x = x + v
        answered = ((self.phase + self.delay) % self.period == (t + 1) % self.period)[:, None]
        return np.concatenate([np.where(answered, x - d, x), v, d, center])


def _assigned(fragments: int | Sequence[int], n: int) -> NDArray[np.int64]:
    """Return the number of each element's fragment."""
    if not isinstance(fragments, int):
        numbers_ = np.asarray(fragments, dtype=np.int64)
        if numbers_.shape != (n,) or not np.array_equal(np.unique(numbers_), np.arange(numbers_.max() + 1)):
            raise refuse("fragments", fragments, f"numbers {n} elements from 0 without a gap", "give one for each")
        return numbers_
    P = count("fragments", fragments)
    if n < P:
        raise refuse("fragments", P, f"there are {n} elements", "give fewer fragments")
    return np.arange(n, dtype=np.int64) * P // n
