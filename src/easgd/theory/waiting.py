"""The time that exchanges cost, and the period that makes it small.

A worker makes τ steps of s seconds between two exchanges of X seconds. A method that needs the answer waits for all
of X. One that uses it k steps later waits for what outlasts k steps; in P fragments, P times for what is left of X/P:

    felt   X, or max((X − P k s)⁺, (X − τ s)⁺): no more than X seconds of exchange fit into a period without waiting
    share  felt/(τ s + felt)

All p workers share the center, and perhaps a link. One exchange occupies it for c seconds, so p c/(τ s) of its time.
Hidden or not, an exchange that needs w seconds of the processor that computes gradients takes w/(τ s) of its time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from easgd.theory.checks import count, numbers

QUIET = 0.01  # the share of time below which waiting no longer matters
BUSY = 0.5  # the share of its time for which the center may be occupied: above it queues grow long
WORK = 0.02  # the share of the processor's time that may go into exchanges
LONGEST = 1 << 20  # no run waits for more steps than this
DOUBLINGS = 6  # how far from the waiting bound a stable period is looked for


@dataclass(frozen=True)
class Share:
    """The share of a worker's time spent on communication at one period."""

    period: int
    waiting: float  # the worker waits for every exchange
    hidden: float  # the exchange overlaps the next k steps, as EASGD and EAMSGD allow


def communication_share(
    period: int, step_time: float, exchange_time: float, delay: int = 1, fragments: int = 1
) -> Share:
    """Return the share of time spent communicating if τ steps of s seconds are followed by an exchange of X seconds.

    waiting X/(τs + X);   hidden (X − s)⁺/(τs + (X − s)⁺): the worker waits only for what exceeds the next step

    Args:
        period: τ.
        step_time, exchange_time: s and X, the latter of the whole vector.
        delay: k: the exchange hides behind k steps.
        fragments: P: each part's exchange takes X/P, and hides behind k steps of its own.

    >>> communication_share(period=10, step_time=0.1, exchange_time=0.25)
    Share(period=10, waiting=0.2, hidden=0.13043478260869565)
    >>> communication_share(period=10, step_time=0.1, exchange_time=0.25, delay=3).hidden
    0.0
    """
    tau = count("period", period)
    s, X = _times(step_time, exchange_time)
    behind = count("delay", delay) * count("fragments", fragments)
    rest = max(0.0, X - behind * s, X - tau * s if behind > tau else 0.0)
    return Share(tau, X / (tau * s + X), rest / (tau * s + rest))


def period_for(
    step_time: float,
    exchange_time: float,
    *,
    workers: int = 1,
    center_time: float = 0.0,
    delay: int = 1,
    fragments: int = 1,
    hidden: bool = True,
    work: float = 0.0,
    share: float = QUIET,
    stable: Callable[[int], bool] | None = None,
) -> int:
    """Return the smallest period at which a worker waits for less than `share` of its time. `period="auto"` uses it.

    Args:
        step_time: s, seconds of one local step.
        exchange_time: X, seconds of one exchange of the whole vector, without waiting for other workers.
        workers: p, those that share the center.
        center_time: c, seconds for which one exchange occupies what all share; at most half of its time is taken.
        delay: k. The period is longer than k, unless k = 1.
        fragments: P. The period is a multiple of P.
        hidden: False for a method that waits for its answer, and where rounds are not hidden.
        work: w, processor seconds of one exchange that a gradient could have had; at most 2 % of its time is taken.
        share: the largest share of time that may be spent waiting.
        stable: says whether the settings are stable at a period. The next longer period that is stable is taken,
            and if there is none, the longest shorter one: a run that waits is better than one that diverges.

    >>> period_for(step_time=0.1, exchange_time=0.08), period_for(0.1, 0.25), period_for(0.1, 0.25, delay=3)
    (1, 149, 4)
    >>> period_for(0.1, 0.08, workers=16, center_time=0.02)
    7
    >>> period_for(0.1, 0.08, work=0.03)
    15
    """
    s, X = _times(step_time, exchange_time)
    p, k, P = count("workers", workers), count("delay", delay), count("fragments", fragments)
    c, most = float(numbers("center_time", center_time, 0)), float(numbers("share", share, 0, 1, open_low=True))
    w = float(numbers("work", work, 0))

    def quiet(tau: int) -> bool:
        one = communication_share(tau, s, X, k, P)
        felt = one.hidden if hidden else one.waiting
        return felt < most and p * c <= BUSY * tau * s and w <= WORK * tau * s

    shortest = P * math.ceil((k + 1 if k > 1 else 1) / P)
    felt = max(0.0, X - k * P * s) if hidden else X
    guess = max(felt / s * (1 - most) / most, p * c / (BUSY * s), w / (WORK * s), min(X / s, k * P) if hidden else 0.0)
    tau = max(shortest, P * math.floor(min(guess, LONGEST) / P))
    if guess >= LONGEST:
        return tau
    # Up to the first that is quiet, and down as long as the next shorter one is: the share falls as τ grows.
    while not quiet(tau):
        tau += P
    while tau - P >= shortest and quiet(tau - P):
        tau -= P
    return _stable_from(tau, P, shortest, stable)


def delay_for(step_time: float, exchange_time: float, *, fragments: int = 1) -> int:
    """Return the smallest delay behind which an exchange hides: the steps that the exchange of one fragment takes.

    `period="auto"` uses it. Without it, an exchange that takes longer than a step asks for a period a hundred times as
    long as what is felt of it.

    >>> delay_for(step_time=0.1, exchange_time=0.08), delay_for(0.1, 0.25), delay_for(0.1, 2.4, fragments=8)
    (1, 3, 3)
    """
    s, X = _times(step_time, exchange_time)
    return max(1, math.ceil(min(X / (count("fragments", fragments) * s), LONGEST)))


def quiet_period(step_time: float, exchange_time: float, share: float = QUIET) -> int:
    """Return the smallest τ at which waiting takes less than `share` of the time: X/(τs + X) < share.

    >>> quiet_period(step_time=0.1, exchange_time=0.25)
    248
    """
    return period_for(step_time, exchange_time, hidden=False, share=share)


def _stable_from(tau: int, P: int, shortest: int, stable: Callable[[int], bool] | None) -> int:
    if stable is None or stable(tau):
        return tau
    for i in range(1, DOUBLINGS + 1):
        if stable(tau << i):
            return tau << i
    shorter = tau
    while shorter > shortest:
        shorter = max(shortest, P * (shorter // (2 * P)))
        if stable(shorter):
            return shorter
    return tau  # nothing near is stable: the run is warned of its settings, whatever its period


def _times(step_time: float, exchange_time: float) -> tuple[float, float]:
    s = float(numbers("step_time", step_time, 0, open_low=True))
    return s, float(numbers("exchange_time", exchange_time, 0))
