"""Limits and ticks of the vertical axes, and whether they are logarithmic."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from easgd.errors import unknown
from easgd.report.data import PANELS, Line

SCALES = ("auto", "linear", "log")
WIDE = 20.0
"""From this ratio of the largest to the smallest value a linear axis hides the end, where methods differ."""


def check_scale(scale: str) -> str:
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)
    return scale


def bounds(lines: Sequence[Line], name: str) -> tuple[float, float] | None:
    """Return the values a panel must show. What diverges beyond the start is cut: it would flatten all others."""
    starts, values = [], []
    for line in lines:
        for curves in (line.mean, *line.seeds):
            finite = curves[name][np.isfinite(curves[name])]
            if len(finite):
                starts.append(float(finite[0]))
                values.append(finite)
    if not values:
        return None
    everything = np.concatenate(values)
    return float(everything.min()), min(float(everything.max()), 1.15 * max(starts))


def is_log(lines: Sequence[Line], scale: str = "auto") -> bool:
    """Whether the panels are logarithmic, all or none. The paper's are linear; a range it never had needs another."""
    found = [ends for name in PANELS if (ends := bounds(lines, name)) is not None and ends[1] > 0]
    if scale == "linear" or not found:
        return False
    return scale == "log" or any(high > WIDE * _positive(low, high) for low, high in found)


def limits(lines: Sequence[Line], name: str, log: bool) -> tuple[float, float] | None:
    """Return the ends of the axis, with a margin; None where there is nothing to show."""
    found = bounds(lines, name)
    if found is None:
        return None
    low, high = found
    if log:
        low = _positive(low, high)
        margin = (high / low) ** 0.04
        return low / margin, high * margin
    margin = 0.04 * (high - low) or 0.01
    return max(low - margin, 0.0) if low >= 0 else low - margin, high + margin


def _positive(low: float, high: float) -> float:
    """A logarithmic axis ends somewhere: five decades below its top at the latest."""
    return max(low, high / 1e5)


def ticks(low: float, high: float) -> list[float]:
    """Return round numbers for a logarithmic axis: 1, 2, 5 times powers of ten; only the powers if that is many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    fine = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    inside = [tick for tick in fine if low <= tick <= high]
    return inside if len(inside) <= 9 else [10.0**power for power in powers if low <= 10.0**power <= high]
