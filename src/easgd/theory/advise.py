"""What to expect of a run before it starts: α, β, ρ, stability, variance, share of time spent communicating.

`advise` returns numbers for a user, `check` returns warnings for an engine that is about to train. Both use the paper's
formulas where it has them (synchronous, τ = 1, no momentum) and the period maps of `periods.py` elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from easgd.errors import refuse
from easgd.theory.best import SLACK, stable_curvature
from easgd.theory.checks import count, numbers
from easgd.theory.delay import DelayCost, delay_cost
from easgd.theory.moments import center_speed
from easgd.theory.periods import center_variance, period_radius
from easgd.theory.rules import METHODS
from easgd.theory.stability import easgd_lr_bound
from easgd.theory.waiting import Share, communication_share, delay_for, period_for, quiet_period

DEFAULT_BETA = 0.9
PERIODS = (1, 2, 4, 10, 16, 64, 100, 1000)
# The round-robin map has p + 1 rows, 2p + 1 with momentum. Above this number of workers the synchronous map is used,
# whose size does not depend on p.
MOST_ROUND_ROBIN = 64


@dataclass(frozen=True)
class Spring:
    """The strength of the spring in its three forms, β = pα and α = ηρ; `given` names the one that was set."""

    moving_rate: float
    beta: float
    rho: float
    given: str


@dataclass(frozen=True)
class Advice:
    """The result of `advise`. Ratios are relative to one worker's SGD with the same learning rate and momentum."""

    method: str
    workers: int
    lr: float
    period: int
    momentum: float
    spring: Spring
    schedule: str  # of the numbers below: "round-robin", or "sync" for many workers
    largest_curvature: float  # stable up to this h
    any_order_curvature: float | None  # the paper's bound, for any order of the workers; None with momentum or delay
    curvature: float | None
    radius: float | None  # per period, at `curvature`
    variance: dict[float, float]  # ηh → stationary variance of the center over that of one worker's SGD; ∞ outside
    shares: list[Share]  # empty without the two times
    quiet_period: int | None  # smallest τ at which waiting for every exchange takes less than 1 %
    delay: int  # k
    fragments: int  # P
    delay_costs: list[DelayCost]  # of this delay and of some others below τ, at `curvature` or ηh = 0.1
    auto_period: int | None  # what period="auto" would choose with these times
    auto_delay: int  # and the delay behind which it would hide the exchange

    @property
    def stable(self) -> bool | None:
        """Whether the settings are stable at the given curvature; None if none was given."""
        return None if self.radius is None else self.radius <= 1 + SLACK

    @property
    def speed(self) -> float:
        """How fast the center moves where the loss is almost flat."""
        return center_speed(self.workers)

    @property
    def largest_lr(self) -> float | None:
        """The largest stable learning rate at the given curvature, with the same moving rate; None without one."""
        return None if self.curvature is None else self.largest_curvature * self.lr / self.curvature


def spring(
    workers: int, lr: float, beta: float | None = None, moving_rate: float | None = None, rho: float | None = None
) -> Spring:
    """Return α, β and ρ from the one that is given, or from β = 0.9. They do not depend on the period.

    >>> spring(workers=4, lr=0.1, beta=0.8)
    Spring(moving_rate=0.2, beta=0.8, rho=2.0, given='beta')
    """
    p, eta = count("workers", workers), float(numbers("lr", lr, 0, open_low=True))
    given = {k: v for k, v in (("beta", beta), ("moving_rate", moving_rate), ("rho", rho)) if v is not None}
    if len(given) > 1:
        raise refuse(" and ".join(given), ", ".join(map(str, given.values())), "are one spring", "give one of them")
    name, value = next(iter(given.items()), ("beta", DEFAULT_BETA))
    number = float(numbers(name, value, 0))
    alpha = {"beta": number / p, "moving_rate": number, "rho": eta * number}[name]
    return Spring(alpha, p * alpha, alpha / eta, name if given else "default beta")


def advise(
    workers: int,
    lr: float,
    period: int = 10,
    *,
    momentum: float = 0.0,
    beta: float | None = None,
    moving_rate: float | None = None,
    rho: float | None = None,
    curvature: float | None = None,
    step_time: float | None = None,
    exchange_time: float | None = None,
    center_time: float = 0.0,
    delay: int = 1,
    fragments: int = 1,
) -> Advice:
    """Return what to expect of EASGD, or of EAMSGD if momentum is given.

    Args:
        workers: p.
        lr: η.
        period: τ.
        momentum: δ.
        beta, moving_rate, rho: the spring, in one of its forms.
        curvature: largest curvature h of the loss (`largest_curvature` measures it).
        step_time, exchange_time: seconds of one local step and of one exchange; give both or neither.
        center_time: seconds for which one exchange occupies what all workers share, the center or a link.
        delay: k, steps after which a worker uses the center's answer.
        fragments: P, parts of the vector that are exchanged in turn.

    >>> advice = advise(workers=4, lr=0.1, period=10, curvature=1.0)
    >>> advice.stable, round(advice.largest_lr, 3), round(advice.variance[0.1], 3)
    (True, 1.977, 0.154)
    """
    p, tau, k = count("workers", workers), count("period", period), count("delay", delay)
    tied = spring(p, lr, beta, moving_rate, rho)
    delta = float(numbers("momentum", momentum, 0))
    if delta >= 1:
        raise refuse("momentum", momentum, "must be below 1", "the paper has 0.99")
    if tau % count("fragments", fragments):
        raise refuse("fragments", fragments, f"must divide the period τ = {tau}", "change one of the two")
    if (step_time is None) != (exchange_time is None):
        raise refuse("step_time, exchange_time", f"{step_time}, {exchange_time}", "go together", "give both or none")
    schedule = "round-robin" if p <= MOST_ROUND_ROBIN else "sync"
    settings: dict[str, Any] = {"period": tau, "moving_rate": tied.moving_rate, "momentum": delta}
    settings |= {"schedule": schedule, "delay": k}
    h = None if curvature is None else float(numbers("curvature", curvature, 0, open_low=True))
    probes = (0.01, 0.1, 1.0) if h is None else (lr * h,)
    times = None if step_time is None or exchange_time is None else (step_time, exchange_time)

    # Asynchronous workers hide a long exchange behind several steps.
    late = k if times is None else max(k, delay_for(*times, fragments=fragments))

    def stable(period: int) -> bool:
        at = {**settings, "period": period, "delay": late}
        return h is None or late >= period > 1 or float(period_radius("easgd", p, lr, h=h, **at)) <= 1 + SLACK

    auto = None
    if times is not None:
        auto = period_for(
            *times, workers=p, center_time=center_time, delay=late, fragments=fragments, stable=stable
        )  # fmt: skip
    return Advice(
        method="eamsgd" if delta else "easgd",
        workers=p,
        lr=float(lr),
        period=tau,
        momentum=delta,
        spring=tied,
        schedule=schedule,
        largest_curvature=stable_curvature("easgd", p, lr, **settings),
        any_order_curvature=None if delta or k > 1 or tied.moving_rate > 1 else easgd_lr_bound(tied.moving_rate) / lr,
        curvature=h,
        radius=None if h is None else float(period_radius("easgd", p, lr, h=h, **settings)),
        variance={e: _variance_ratio(p, lr, e / lr, settings) for e in probes},
        shares=[]
        if times is None
        else [communication_share(t, *times, k, fragments) for t in sorted({*PERIODS, tau}) if t > k or k == 1],
        quiet_period=None if times is None else quiet_period(*times),
        delay=k,
        fragments=fragments,
        delay_costs=[_cost(p, lr, h or 0.1 / lr, late, settings) for late in _delays(k, tau)],
        auto_period=auto,
        auto_delay=late,
    )


def _delays(delay: int, period: int) -> list[int]:
    """Return the delay that was asked for and some to compare it with."""
    return sorted({k for k in (delay, 2, 5, period // 2, period - 1) if 1 < k < period})


def _cost(workers: int, lr: float, h: float, delay: int, settings: dict[str, Any]) -> DelayCost:
    return delay_cost("easgd", workers, lr, h=h, **{**settings, "delay": delay})


def _variance_ratio(workers: int, lr: float, h: float, settings: dict[str, Any]) -> float:
    ours = float(center_variance("easgd", workers, lr, h=h, **settings))
    alone = float(center_variance("sgd", 1, lr, h=h, momentum=settings["momentum"]))
    return ours / alone if math.isfinite(alone) else math.inf


def check(
    method: str,
    *,
    lr: float,
    workers: int = 1,
    period: int = 1,
    moving_rate: float | None = None,
    momentum: float = 0.0,
    rho: float | None = None,
    curvature: float | None = None,
    schedule: str = "round-robin",
    delay: int = 1,
) -> list[str]:
    """Return warnings about settings outside the stable region; an empty list where they are inside.

    Engines call it for any method when a run starts; for methods without a linear map the list is empty.

    Args:
        method: a method's name, in any case.
        lr, workers, period, moving_rate, momentum, rho: the run's settings.
        curvature: largest curvature h; without it only settings that are unstable at any h are reported.
        schedule: "round-robin", "sync", or "async", which is treated as round-robin.
        delay: k of the elastic methods; the others have no map with one.

    >>> check("easgd", lr=0.1, workers=4, moving_rate=0.2, curvature=1.0)
    []
    >>> len(check("easgd", lr=0.1, workers=4, moving_rate=0.2, curvature=50.0))
    1
    """
    name = method.lower()
    if name not in METHODS or not lr > 0:
        return []
    p = 1 if name in ("sgd", "msgd", "asgd", "mvasgd") else count("workers", workers)
    settings: dict[str, Any] = {"period": period, "momentum": momentum, "moving_rate": moving_rate, "rho": rho}
    settings["schedule"] = "sync" if schedule == "sync" or p > MOST_ROUND_ROBIN else "round-robin"
    settings["delay"] = delay if name in ("easgd", "eamsgd") else 1
    given = [f"lr = {lr:g}", f"workers = {p}", f"period = {period}"]
    given += [f"delay = {delay}"] if settings["delay"] > 1 else []
    optional = {"moving_rate": moving_rate, "momentum": momentum, "rho": rho}
    given += [f"{what} = {value:g}" for what, value in optional.items() if value]
    label = f"{method} with {', '.join(given)}"
    if curvature is not None:
        radius = float(period_radius(name, p, lr, h=curvature, **settings))
        if radius <= 1 + SLACK:
            return []
        limit = stable_curvature(name, p, lr, **settings)
        remedy = (
            f"stable up to h = {limit:.4g}"
            if limit
            else "small curvatures are unstable too: lower moving_rate (or beta)"
        )
        if limit and name != "admm":
            remedy += f"; at this curvature use lr below {limit * lr / curvature:.4g}"
        growth = f"errors grow {radius:.4g} times a period"
        return [f"{label} is unstable at curvature h = {curvature:g}: {growth}; {remedy}"]
    if stable_curvature(name, p, lr, **settings) > 0:
        return []
    remedy = "change rho or lr" if name == "admm" else "lower moving_rate (or beta)"
    return [f"{label} is unstable even where the loss is almost flat (lr·h = 1e-6); {remedy}"]
