"""`period="auto"`: a worker measures its steps and exchanges, and derives from them how often to exchange.

`easgd.theory.period_for` says which period the times ask for. Here are the measurements (running medians, so that one
slow step changes nothing) and the rule for changes (rarely: when the period is a quarter too short, or twice too long).

An exchange that takes longer than a step is hidden behind several: where nothing forbids it, the delay follows the
exchange (`easgd.theory.delay_for`), and the method's own is the least. The period is then short also on a slow link.

Asynchronous workers have a period each. All make their exchanges in the same interval of time, the longest that any of
them needs: a machine that is twice as fast takes twice as many steps between two exchanges. Synchronous workers take
the longest period that any of them asks for, all from the same round on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from statistics import median, median_low
from typing import Any

from easgd import theory
from easgd.methods import Method
from easgd.worker.stability import FIRST_PERIOD

STEPS, EXCHANGES = 33, 9  # measurements that a median is taken of
FEWEST_STEPS, FEWEST_EXCHANGES = 3, 2  # to judge by; a run's first exchange is often its slowest
LEAST_CHANGE = 2
LONGER, SHORTER = 1.25, 0.5


class PeriodController:
    """The period of one worker, which sets itself.

    Args:
        method: the worker's method; its fragments divide the period, its delay is below it.
        workers: those that share the center.
        hidden: whether exchanges run behind the gradient.
        center_time: seconds for which an exchange of the whole vector occupies what all workers share; None takes the
            shortest exchange that was seen, which is at least that.
        stable: whether the settings are stable at a period and a delay, if that is known.

    Attributes:
        period: the present one.
        delay: steps after which an answer is used; the method's, or more if it `follows`.
        follows: whether the delay follows the exchange: asynchronous workers whose exchanges are hidden.
        next: the clock of the next exchange; `last` that of the last one, −1 before the first.
        interval: seconds between two exchanges that this worker needs by its own times; 0 before it has measured.
        fresh: whether an exchange was measured since the last proposal.
    """

    def __init__(
        self, method: Method, workers: int = 1, *, hidden: bool = True, center_time: float | None = None,
        stable: Callable[[int, int], bool] | None = None,
    ) -> None:  # fmt: skip
        self.fragments, self.least_delay = method.fragments, max(1, method.delay)
        self.delay, self.follows = self.least_delay, False
        self.workers, self.hidden, self.center_time, self.stable = workers, hidden, center_time, stable
        self.period = self._whole(max(FIRST_PERIOD, self.delay + 1))
        self.join()
        self.interval, self.fresh = 0.0, False
        self.steps: deque[float] = deque(maxlen=STEPS)
        self.exchanges: deque[float] = deque(maxlen=EXCHANGES)
        self.works: deque[float] = deque(maxlen=EXCHANGES)

    def due(self, clock: int) -> bool:
        """Whether step `clock` begins with an exchange."""
        return clock >= self.next

    def asked(self, clock: int) -> None:
        """Step `clock` began with an exchange: plan the next one."""
        self.last, self.next = clock, clock + self.period // self.fragments

    def stepped(self, seconds: float) -> None:
        """Measure a step: its gradient, its data, and nothing that was lost to exchanges."""
        self.steps.append(seconds)

    def exchanged(self, seconds: float, work: float = 0.0) -> None:
        """Measure an exchange of one fragment, from its message to its answer, without the time lost to others.

        `work` is the processor time of it that a gradient could have had.
        """
        self.exchanges.append(seconds)
        self.works.append(work)
        self.fresh = True

    @property
    def measured(self) -> bool:
        """Whether there is enough to judge by."""
        return len(self.steps) >= FEWEST_STEPS and len(self.exchanges) >= FEWEST_EXCHANGES and min(self.steps) > 0

    @property
    def step_time(self) -> float:
        """Seconds of a step."""
        return median(self.steps)

    @property
    def exchange_time(self) -> float:
        """Seconds of an exchange of the whole vector."""
        return self.fragments * median_low(self.exchanges)

    def needed_delay(self) -> int:
        """Return the delay to take: changed rarely, too, and never shorter than an exchange under way may rely on."""
        if not (self.follows and self.hidden and self.measured):
            return self.delay
        best = max(self.least_delay, theory.delay_for(self.step_time, self.exchange_time, fragments=self.fragments))
        shorter = best <= SHORTER * self.delay and self.fragments == 1
        return best if best > self.delay or shorter else self.delay

    def needed(self) -> int:
        """Return the period that this worker's own times ask for."""
        delay, stable = self.needed_delay(), self.stable
        occupied = self.fragments * min(self.exchanges) if self.center_time is None else self.center_time
        return theory.period_for(
            self.step_time, self.exchange_time, workers=self.workers, center_time=occupied, delay=delay,
            fragments=self.fragments, hidden=self.hidden, work=self.fragments * median_low(self.works),
            stable=None if stable is None else lambda period: stable(period, delay),
        )  # fmt: skip

    def assess(self) -> None:
        """Find the interval that the times measured so far ask for."""
        self.fresh = False
        if self.measured:
            self.interval = self.needed() * self.step_time

    def proposal(self, slowest: float = 0.0) -> int:
        """Return the period to take from now on; the present one, unless it is a good deal too short or too long.

        Args:
            slowest: the longest interval that any worker needs, in seconds; 0 leaves the others out.
        """
        if not self.interval:
            return self.period
        delay = self.needed_delay()
        least = delay + 1 if delay > 1 else 1
        best = self._whole(max(least, round(max(self.interval, slowest) / self.step_time)))
        change = best > LONGER * self.period or best <= SHORTER * self.period or self.period < least
        return best if change and abs(best - self.period) >= min(LEAST_CHANGE, self.period) else self.period

    def adopt(self, period: int) -> str | None:
        """Take a period from the last exchange on; return what to record of the change, if it is one."""
        delay = min(self.needed_delay(), max(1, period - 1))
        if (period, delay) == (self.period, self.delay):
            return None
        before, self.period, late = self.period, period, delay != self.delay
        self.delay = delay
        self.next = max(0, self.last) + period // self.fragments
        times = f"a step takes {self.step_time:.4g} s, an exchange {self.exchange_time:.4g} s" if self.measured else ""
        after = f"{before} → {period}" if before != period else f"{period}"
        after += f", answers used after {delay} steps" if late else ""
        return f"{after}{': ' if times else ''}{times}"

    def join(self) -> None:
        """A new incarnation begins at clock 0. What was measured still holds."""
        self.last, self.next = -1, self.period // self.fragments

    def _whole(self, period: int) -> int:
        """Round up to a multiple of the fragments."""
        return -(-period // self.fragments) * self.fragments

    def state_dict(self) -> dict[str, Any]:
        """Return what decides the next changes."""
        return {
            "period": self.period,
            "delay": self.delay,
            "last": self.last,
            "next": self.next,
            "interval": self.interval,
            "fresh": self.fresh,
            "steps": list(self.steps),
            "exchanges": list(self.exchanges),
            "works": list(self.works),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.period, self.delay = state["period"], state["delay"]
        self.last, self.next = state["last"], state["next"]
        self.interval, self.fresh = state["interval"], state["fresh"]
        self.steps = deque(state["steps"], maxlen=STEPS)
        self.exchanges = deque(state["exchanges"], maxlen=EXCHANGES)
        self.works = deque(state["works"], maxlen=EXCHANGES)
