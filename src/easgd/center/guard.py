"""A bound on how far a message may be from the center, so that one diverging worker does not take the others with it.

What is judged is the distance ‖x − x̃‖ of a message that is a position, the norm of one that is a change. A worker's
level is the median of its last distances; its first message after it has joined does not count, because it has hardly
moved by then. With the level of a worker in the middle of all, the lower one of two:

    bound = factor · level,  but not below 1 % of ‖x̃‖, where a message can do little harm

A message beyond it is refused, and counts as the bound: half of the workers cannot move it, and when all of them are
refused, as after a sudden change of the rates, the bound follows them. As long as no level is known the bound is a
hundred times ‖x̃‖, or `factor` times the largest first message: a model may begin at zero.
"""

from __future__ import annotations

import math
import statistics
from array import array
from collections.abc import Callable
from typing import NamedTuple

from easgd.errors import NonFiniteError, refuse

FACTOR = 30.0
"""Twice the largest ratio in the committed records of runs that did not diverge, 15.1; see docs/faults.md."""
WINDOW = 8
WORDS = 1 + WINDOW
AT_FIRST, HARMLESS = 100.0, 0.01
RANKS = 1024


class Refusal(NamedTuple):
    """Why a message was refused; a distance of infinity says that it is not finite."""

    distance: float = math.inf
    bound: float = math.inf

    def __str__(self) -> str:
        if not math.isfinite(self.distance):
            return "not finite"
        return f"distance {self.distance:.4g}, bound {self.bound:.4g}"


class Guard:
    """The distances of a run's last messages, and the bound that follows from them.

    Args:
        factor: how many times the usual distance is too far; 0 bounds nothing.
        table: `WORDS` numbers for each rank: how many messages it has sent, then its last distances. In shared memory
            it is the run's own; a new one if None.
    """

    def __init__(self, factor: float = FACTOR, table: memoryview[float] | None = None) -> None:
        self.factor = factor
        self.table = memoryview(array("d", bytes(8 * WORDS * RANKS))) if table is None else table

    def judge(self, rank: int, distance: float, norm: Callable[[], float]) -> Refusal | None:
        """Say whether a message at this distance may meet the center; `norm` gives ‖x̃‖ where it is needed."""
        if not math.isfinite(distance):
            return Refusal()
        if not self.factor:
            return None
        bound = self.bound(distance, norm)
        self._count(rank, min(distance, bound))
        return None if distance <= bound else Refusal(distance, bound)

    def bound(self, distance: float, norm: Callable[[], float]) -> float:
        """The bound for a message at this distance: ‖x̃‖ takes a pass over memory, and most need none."""
        sent = self.table[::WORDS].tolist()
        levels = [self._level(rank, int(n)) for rank, n in enumerate(sent) if n > 1]
        if levels:
            usual = self.factor * statistics.median_low(levels)
        else:
            usual = self.factor * max((self.table[WORDS * rank + 1] for rank, n in enumerate(sent) if n), default=0.0)
        if distance <= usual:
            return usual
        return max(usual, norm() * (HARMLESS if levels else AT_FIRST)) or math.inf

    def _level(self, rank: int, sent: int) -> float:
        first = WORDS * rank + 1
        return statistics.median_low(self.table[first : first + min(WINDOW, sent - 1)].tolist())

    def _count(self, rank: int, distance: float) -> None:
        at = WORDS * rank
        while at >= len(self.table):
            self.table = memoryview(array("d", self.table.tobytes() * 2))
            self.table[len(self.table) // 2 :] = array("d", bytes(4 * len(self.table)))
        sent = int(self.table[at])
        if not sent:
            self.table[at] = 1
            self.table[at + 1] = distance  # type: ignore[call-overload]
        elif distance:  # nothing was done since the last exchange: that says nothing of the next
            self.table[at + 1 + (sent - 1) % WINDOW] = distance  # type: ignore[call-overload]
            self.table[at] = sent + 1

    def forget(self, rank: int) -> None:
        """Forget a worker that has died or starts anew. One that has finished stays a measure for the others."""
        if WORDS * rank < len(self.table):
            self.table[WORDS * rank] = 0

    def load(self, table: list[float]) -> None:
        """Take back a saved table."""
        self.table = memoryview(array("d", table))


def refusal_error(rank: int, clock: int, why: Refusal) -> NonFiniteError:
    """Return the error of a worker whose policy is to raise."""
    where = f"worker {rank}, step {clock}"
    if not math.isfinite(why.distance):
        return NonFiniteError(f'{where}: its variable is not finite; lower lr, or write nonfinite="reset"')
    remedy = 'lower lr, or write nonfinite="reset", or guard=0'
    return NonFiniteError(f"{where}: it has diverged from the center ({why}); {remedy}")


def check_factor(guard: object) -> float:
    """Return the factor that was asked for; None is the default, 0 switches the guard off."""
    if guard is None:
        return FACTOR
    if isinstance(guard, bool) or not isinstance(guard, int | float) or not (guard == 0 or 1 < guard < math.inf):
        raise refuse("guard", guard, "it is a factor above 1, or 0 for no bound", f"write guard={FACTOR:g}")
    return float(guard)
