"""The linear map of every method over one cycle, its spectral radius and its stationary variance (not in the paper).

In a cycle every worker exchanges once and makes τ steps: p·τ ticks of the global clock in the round-robin schedule, τ
rounds in the synchronous one. It begins just before an exchange. `rules.py` has each method's turn.

    round-robin   cycle = (S G)ᵖ, G one worker's turn, S the rotation of the workers (see `maps.py`)
    synchronous   workers are exchangeable: the map splits into the common part of all workers (with the shared
                  variables) and their differences, two small maps whose size does not depend on p

Radii are per cycle; `rate` gives the factor per local step, to compare different τ.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from easgd.errors import refuse, unknown
from easgd.theory.checks import Array, count, numbers, plain
from easgd.theory.linear import CHUNK_BYTES, run, spectral_radius
from easgd.theory.rules import METHODS, Elastic, Forms, Knobs, Rule, rule

SCHEDULES = ("round-robin", "sync")
FOREVER = 1 << 60  # turns: if the map is a contraction, further terms do not change a sum in float64


class Cycle:
    """One method with its settings; arrays of settings give a stack of maps.

    Args:
        method: a name of `METHODS`.
        workers: p; 1 for the sequential methods.
        lr: η.
        period: τ.
        moving_rate: α of the elastic methods; by default β/p with β = 0.9.
        momentum: δ. EASGD with δ > 0 is EAMSGD, SGD with δ > 0 is MSGD.
        rho: ρ of ADMM.
        rate: a of the moving averages.
        h: curvature.
        schedule: "round-robin" or "sync".
        clock: number of updates of the averaged variable so far (ADOWNPOUR, ASGD: their map changes with time).
        delay: k, the steps after which a worker uses the center's answer (EASGD, EAMSGD); 1 is the paper's.

    >>> cycle = Cycle("easgd", workers=4, lr=0.1, period=10, moving_rate=0.2)
    >>> cycle.names
    ['x0', 'x1', 'x2', 'x3', 'center']
    >>> bool(cycle.radius() < 1)
    True
    """

    def __init__(
        self,
        method: str,
        workers: int,
        lr: ArrayLike,
        *,
        period: int = 1,
        moving_rate: ArrayLike | None = None,
        momentum: ArrayLike = 0.0,
        rho: ArrayLike | None = None,
        rate: float = 0.001,
        h: ArrayLike = 1.0,
        schedule: str = "round-robin",
        clock: int = 0,
        delay: int = 1,
    ) -> None:
        if method not in METHODS:
            raise unknown("method", method, METHODS)
        if schedule not in SCHEDULES:
            raise unknown("schedule", schedule, SCHEDULES)
        p, tau = count("workers", workers), count("period", period)
        if method in ("sgd", "msgd", "asgd", "mvasgd") and p != 1:
            raise refuse("workers", p, f"{method} is sequential", "use workers = 1")
        delta = numbers("momentum", momentum, 0, 1)
        if "downpour" in method and method != "mdownpour" and delta.any():
            raise refuse("momentum", momentum, f"{method} has none", "use mdownpour")
        if method == "admm" and (rho is None or delta.any()):
            raise refuse("rho, momentum", (rho, momentum), "ADMM needs rho, and has no momentum", "pass rho alone")
        k = count("delay", delay)
        if k > 1 and method not in ("easgd", "eamsgd"):
            raise refuse("delay", k, f"{method} needs its answer before the gradient", "use easgd or eamsgd")
        if k > 1 and k >= tau:
            raise refuse("delay", k, f"must be below the period τ = {tau}", "lower delay, or raise period")
        alpha = numbers("moving_rate", 0.9 / p if moving_rate is None else moving_rate, 0)
        eta, curvature = numbers("lr", lr, 0), numbers("h", h, 0)
        pull = eta * numbers("rho", 0.0 if rho is None else rho, 0)
        e = eta * curvature
        grid = np.broadcast_arrays(e, alpha, delta, pull, numbers("rate", rate, 0, 1))
        self.shape = grid[0].shape
        self.lr = np.broadcast_to(eta, self.shape)
        e_, alpha_, delta_, pull_, rate_ = (np.array(axis, float).reshape(-1, 1) for axis in grid)
        self.knobs = Knobs(e_, alpha_, delta_, pull_, rate_, tau, p, count("clock", clock, 0), k)
        self.rule: Rule = rule(method, bool(delta.any()), tau)
        self.method, self.schedule = method, schedule

    @property
    def names(self) -> list[str]:
        """The state variables, in the order of the map's rows."""
        own = [f"{name}{i}" for i in range(self.knobs.workers) for name in self.rule.own]
        return own + list(self.rule.shared)

    def map(self) -> Array:
        """Return the cycle's matrix [..., n, n] on the state `names`."""
        maps = self._sync_map(self.knobs) if self.schedule == "sync" else self._product(self.knobs)
        return maps.reshape(*self.shape, *maps.shape[-2:])

    def radius(self) -> Any:
        """Return the largest absolute eigenvalue of the cycle: errors vanish if it is below 1, grow if above."""
        n = len(self.names)
        step = max(1, CHUNK_BYTES // (8 * n * n))
        total = self.knobs.e.shape[0]
        parts = [self._radius(_part(self.knobs, slice(i, i + step))) for i in range(0, total, step)]
        return plain(np.concatenate(parts).reshape(self.shape))

    def rate(self) -> Any:
        """Return the factor by which errors shrink per local step, radius^(1/τ)."""
        return plain(np.asarray(self.radius()) ** (1 / self.knobs.period))

    def variance(self, sigma: float = 1.0) -> Any:
        """Return the stationary variance of the center (of z, if there is one) under gradient noise σ; ∞ if unstable.

        In the round-robin schedule it is the same at every tick, in the synchronous one it is taken before an exchange.
        """
        return self._where_stable(np.asarray(self._moments(FOREVER, sigma, 0.0)[1]))

    def worker_variance(self, sigma: float = 1.0) -> Any:
        """Return the stationary variance of a worker's xⁱ, the mean over the τ points of a period; ∞ if unstable.

        With fragments, whose exchanges are spread over the period, it is the mean over the elements at any one time.
        """
        k, rule_ = self.knobs, self.rule
        if not isinstance(rule_, Elastic):
            raise refuse("method", self.method, "only EASGD and EAMSGD have it", "use center_variance")
        n, cov = len(rule_.own), self._iterate(FOREVER, sigma)[1]
        if self.schedule == "sync":  # a worker is the mean of all and its difference from it, which are independent
            D = _together(rule_, k, 0)[0][:, :n, :n]
            cov[:, :n, :n] += run(D, self._noise(sigma) * (1 - 1 / k.workers), FOREVER)[1]
        rows, total = np.eye(cov.shape[-1]), np.zeros(k.e.shape[0])
        own = dict(zip(rule_.own, rows, strict=False))
        for x, added in rule_.path(own, {"center": rows[-1]}, k):
            form = np.broadcast_to(x, (len(total), len(rows)))
            with np.errstate(invalid="ignore", over="ignore"):
                total += np.einsum("mi,mij,mj->m", form, cov, form) + self._step_noise(sigma) * added
        return self._where_stable(total / k.period)

    def moments(self, cycles: int, sigma: float = 1.0, start: float = 1.0) -> tuple[Any, Any]:
        """Return mean and variance of the center after `cycles`; workers and center begin at `start`."""
        p = 1 if self.schedule == "sync" else self.knobs.workers
        mean, variance = self._moments(count("cycles", cycles, 0) * p, sigma, start)
        return plain(mean), plain(variance)

    def _moments(self, turns: int, sigma: float, start: float) -> tuple[Array, Array]:
        k, rule_ = self.knobs, self.rule
        power, cov, center = self._iterate(turns, sigma)
        names = [*rule_.own * (1 if self.schedule == "sync" else k.workers), *rule_.shared]
        s0 = np.array([start if name in ("x", "term", "center", "z") else 0.0 for name in names])
        with np.errstate(invalid="ignore", over="ignore"):
            mean = np.einsum("mi,mij,j->m", center, power, s0)
            variance = np.einsum("mi,mij,mj->m", center, cov, center)
        return mean.reshape(self.shape), variance.reshape(self.shape)

    def _where_stable(self, variance: Array) -> Any:
        stable = np.asarray(self.radius()) < 1
        return plain(np.where(stable, np.nan_to_num(variance.reshape(self.shape)), np.inf))

    def _iterate(self, turns: int, sigma: float) -> tuple[Array, Array, Array]:
        """Return the map's power, the covariance of the state after as many turns, and the center's linear form."""
        if self.method in ("adownpour", "asgd"):
            raise refuse("method", self.method, "its map changes with time", "use double_average_variance")
        k, n = self.knobs, len(self.rule.own)
        together = self.schedule == "sync"
        M, center = _together(self.rule, k, k.workers) if together else _rotated(self.rule, k)
        acted = 0 if together else (k.workers - 1) * n
        Q = np.zeros_like(M)
        Q[:, acted : acted + n, acted : acted + n] = self._noise(sigma) / (k.workers if together else 1)
        return *run(M, Q, turns), center

    def _noise(self, sigma: float) -> Array:
        return np.asarray(self._step_noise(sigma)[:, None, None] * self.rule.noise(self.knobs))

    def _step_noise(self, sigma: float) -> Array:
        return np.asarray((self.lr.reshape(-1) * float(numbers("sigma", sigma, 0))) ** 2)

    def _radius(self, k: Knobs) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):  # far outside the stable region: the radius is ∞
            if self.schedule == "sync":
                common, _ = _together(self.rule, k, k.workers)
                apart = _together(self.rule, k, 0)[0][:, : len(self.rule.own), : len(self.rule.own)]
                return np.maximum(spectral_radius(common), spectral_radius(apart) if k.workers > 1 else 0.0)
            if self.method == "adownpour":  # its turns differ, so the cycle is not a power of one of them
                return spectral_radius(self._product(k))
            return np.asarray(spectral_radius(_rotated(self.rule, k)[0]) ** k.workers)

    def _product(self, k: Knobs) -> Array:
        result = np.eye(len(self.names))[None]
        for turn in range(k.workers):
            result = _rotated(self.rule, replace(k, clock=k.clock + turn))[0] @ result
        return result

    def _sync_map(self, k: Knobs) -> Array:
        # ownⁱ ← D ownⁱ + (T − D) mean(own) + …: D maps the differences, T the common part
        p, n = k.workers, len(self.rule.own)
        T, D = _together(self.rule, k, p)[0], _together(self.rule, k, 0)[0][:, :n, :n]
        result = np.zeros((T.shape[0], len(self.names), len(self.names)))
        for i in range(p):
            row = slice(i * n, (i + 1) * n)
            for j in range(p):
                result[:, row, j * n : (j + 1) * n] = (T[:, :n, :n] - D) / p + (D if i == j else 0.0)
            result[:, row, p * n :] = T[:, :n, n:]
            result[:, p * n :, row] = T[:, n:, :n] / p
        result[:, p * n :, p * n :] = T[:, n:, n:]
        return result


def _rotated(rule_: Rule, k: Knobs) -> tuple[Array, Array]:
    """Return S G of the round-robin cycle [m, n, n], and the linear form [m, n] of the center at its start."""
    n, size = len(rule_.own), k.workers * len(rule_.own) + len(rule_.shared)
    rows = np.eye(size)
    own: list[Forms] = [dict(zip(rule_.own, rows[i * n :], strict=False)) for i in range(k.workers)]
    shared: Forms = dict(zip(rule_.shared, rows[k.workers * n :], strict=True))
    center = np.broadcast_to(rule_.center(own, shared, k), (k.e.shape[0], size))
    rule_.turn(own, shared, k)
    rotated = [row for forms in (*own[1:], own[0]) for row in forms.values()]
    return _stack([*rotated, *shared.values()], k.e.shape[0]), center


def _together(rule_: Rule, k: Knobs, weight: int) -> tuple[Array, Array]:
    """Return a synchronous round of identical workers [m, n, n], and the linear form [m, n] of the center before it."""
    size = len(rule_.own) + len(rule_.shared)
    rows = np.eye(size)
    own: Forms = dict(zip(rule_.own, rows, strict=False))
    shared: Forms = dict(zip(rule_.shared, rows[len(rule_.own) :], strict=True))
    center = np.broadcast_to(rule_.center([own], shared, k), (k.e.shape[0], size))
    rule_.round(own, shared, k, weight)
    return _stack([*own.values(), *shared.values()], k.e.shape[0]), center


def _stack(rows: list[Array], m: int) -> Array:
    return np.stack([np.broadcast_to(row, (m, row.shape[-1])) for row in rows], axis=1)


def _part(k: Knobs, part: slice) -> Knobs:
    floats = {name: getattr(k, name)[part] for name in ("e", "alpha", "delta", "pull", "rate")}
    return replace(k, **floats)


def period_map(method: str, workers: int, lr: ArrayLike, **settings: Any) -> Array:
    """Return the matrix of one cycle, `Cycle(...).map()`."""
    return Cycle(method, workers, lr, **settings).map()


def period_radius(method: str, workers: int, lr: ArrayLike, **settings: Any) -> Any:
    """Return the spectral radius of one cycle; arguments as `Cycle`, arrays broadcast.

    >>> round(period_radius("sgd", 1, [0.5, 2.5]).tolist()[1], 6)
    1.5
    """
    return Cycle(method, workers, lr, **settings).radius()


def center_variance(method: str, workers: int, lr: ArrayLike, *, sigma: float = 1.0, **settings: Any) -> Any:
    """Return the stationary variance of the center under gradient noise; other arguments as `Cycle`."""
    return Cycle(method, workers, lr, **settings).variance(sigma)
