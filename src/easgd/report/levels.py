"""Time to a test error, and speed-ups: the numbers of the paper's headline and of its last figures.

A method's time to a level is the median over its seeds, where a run that never got there counts as infinitely late. A
speed-up compares it with the fastest sequential method at the same level, or with a named one. Where the comparator
never got there, the time for which it was watched gives a bound from below.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from easgd.errors import refuse, unknown
from easgd.report.entry import ReportRun
from easgd.training.select import Choice
from easgd.training.sweep import check_levels


@dataclass(frozen=True)
class Speedup:
    """How many times sooner; a bound from below where the comparator never reached the level."""

    factor: float
    bound: bool
    against: str

    def __str__(self) -> str:
        return f"{'> ' if self.bound else ''}{self.factor:.1f}×"


def reached(entry: ReportRun, level: float) -> float:
    """Return the first time at which the test error was at most `level`, or infinity."""
    hits = np.flatnonzero(entry.curves["test_error"] <= level)
    return float(entry.curves["time"][hits[0]]) if len(hits) else math.inf


def time_to(choice: Choice[ReportRun], level: float) -> float:
    """Return the median over the seeds of the time to a level; infinite if half of them never got there."""
    times = [reached(entry, level) for entry in choice.counted]
    middle = median(times)
    return middle if not math.isnan(middle) else math.inf  # ∞ − ∞ in the mean of the middle two


def watched(choice: Choice[ReportRun]) -> float:
    """Return how long the method was observed: the shortest of its runs."""
    return min((float(entry.curves["time"][-1]) for entry in choice.counted if len(entry.curves["time"])), default=0.0)


def comparators(choices: Sequence[Choice[ReportRun]], baseline: str | None = None) -> list[Choice[ReportRun]]:
    """Return the methods that speed-ups are measured against: the named one, or all with one worker."""
    if baseline is None:
        return [choice for choice in choices if choice.sequential]
    exact = [choice for choice in choices if choice.label == baseline]
    wanted = baseline.casefold()
    found = exact or [c for c in choices if wanted in (c.label.casefold(), c.config and c.config.method_class.key)]
    if not found:
        raise unknown("baseline", baseline, [choice.label for choice in choices])
    return found


def speedup(choice: Choice[ReportRun], level: float, against: Sequence[Choice[ReportRun]]) -> Speedup | None:
    """Compare one method with the fastest comparator at a level; None where there is nothing to compare."""
    own = time_to(choice, level)
    if choice in against or not against or math.isinf(own) or own <= 0:
        return None
    fastest = min(against, key=lambda other: time_to(other, level))
    theirs = time_to(fastest, level)
    if math.isinf(theirs):
        longest = max(against, key=lambda other: (watched(other), -other.score))
        factor = watched(longest) / own
        return Speedup(factor, True, longest.label) if factor > 1 else None
    return Speedup(theirs / own, False, fastest.label)


def parse_levels(text: str) -> list[float]:
    """Read `0.25,0.21` or `25%,21%`."""
    example = "write --levels 0.25,0.21 for 25 % and 21 %"
    levels = []
    for word in text.split(","):
        try:
            levels.append(float(word.strip().removesuffix("%")) / (100 if word.strip().endswith("%") else 1))
        except ValueError:
            raise refuse("levels", repr(text), f"{word.strip()!r} is not a number", example) from None
    return check_levels(levels)


def automatic_levels(choices: Sequence[Choice[ReportRun]], count: int = 4) -> list[float]:
    """Choose levels from what the slowest learner still reached down to what only the best one did."""
    best = [choice.score for choice in choices if math.isfinite(choice.score)]
    first = [float(e.curves["test_error"][0]) for c in choices for e in c.runs if len(e.curves["test_error"])]
    if not best or not first:
        return []
    low = max(min(best), 1e-3)
    high = min(max(max(best), 1.6 * low), 0.8 * max(first))
    if not low < high:
        return [_round_up(low)] if low < 1 else []
    return sorted({_round_up(float(level)) for level in np.geomspace(high, low, count)}, reverse=True)


def _round_up(level: float) -> float:
    """Round up to two digits: 0.0213 becomes 0.022."""
    unit = 10.0 ** (math.floor(math.log10(level)) - 1)
    return round(math.ceil(level / unit - 1e-9) * unit, 12)
