"""The refusals of settings that all methods share: one line each, with value, bound and remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from easgd.errors import refuse

if TYPE_CHECKING:
    from easgd.methods.base import Method


def check_average(average: object) -> None:
    """Refuse an average that is neither "mean" nor a constant in (0, 1]."""
    if average is None or average == "mean":
        return
    if isinstance(average, bool) or not isinstance(average, int | float) or not 0 < average <= 1:
        raise refuse("average", average, 'it is "mean" or a constant rate a in (0, 1]', 'write average="mean" or 0.001')


def check_period(method: Method) -> None:
    """Refuse a period that is neither a whole number of steps nor "auto"."""
    period = method.period
    if period != "auto" and (isinstance(period, bool) or not isinstance(period, int) or period < 1):
        why = 'the communication period τ is a whole number ≥ 1, or "auto"'
        raise refuse("period", period, why, "write period=1")


def check_fragments(method: Method) -> None:
    """Refuse a number of fragments that cannot come in turn, one every τ/P steps."""
    parts, period = method.fragments, method.period
    if isinstance(parts, bool) or not isinstance(parts, int) or parts < 1:
        raise refuse("fragments", parts, "the vector has a whole number of parts ≥ 1", "write fragments=1")
    if method.sequential and parts != 1:
        raise refuse("fragments", parts, f"{method.name} is sequential and exchanges nothing", "leave it out")
    if period == "auto":
        return
    if parts > period:
        why = f"at most one is exchanged a step, and period = {period}"
        raise refuse("fragments", parts, why, f"write fragments={period} or fewer, or a longer period")
    if period % parts:
        why = f"one is exchanged every τ/P steps, and period = {period} is not divisible by it"
        raise refuse("fragments", parts, why, f"write period={period - period % parts + parts}")


def check_delay(method: Method, usual: int) -> None:
    """Refuse a delay that the method has no meaning for, or that outlasts its period."""
    k = method.delay
    if isinstance(k, bool) or not isinstance(k, int) or k < 0:
        raise refuse("delay", k, "it is a whole number of steps ≥ 0", f"write delay={usual}")
    if k == usual:
        return
    if method.sequential:
        raise refuse("delay", k, f"{method.name} is sequential and exchanges nothing", "leave it out")
    if method.waits and not method.delays:
        raise refuse("delay", k, f"{method.name} needs the answer before the gradient", "leave it out, or write EASGD")
    if k == 0:
        raise refuse("delay", k, f"{method.name} uses the answer after a step", "write delay=1")
    if method.period != "auto" and k > 1 and k >= method.period:
        why = f"the answer must be used before the next exchange, and period = {method.period}"
        raise refuse("delay", k, why, f"write delay={max(1, method.period - 1)} or less, or a longer period")
