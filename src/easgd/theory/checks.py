"""Validation of the arguments: each check returns the value converted, or raises a `SettingError`."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from easgd.errors import refuse

Array = NDArray[np.float64]


def count(what: str, value: Any, least: int = 1) -> int:
    """Return `value` as an int of at least `least`."""
    try:
        whole = operator.index(value)
    except TypeError:
        raise refuse(what, value, "must be a whole number", f"give an integer of {least} or more") from None
    if whole < least:
        raise refuse(what, value, f"must be at least {least}", f"give an integer of {least} or more")
    return whole


def numbers(
    what: str, value: ArrayLike, low: float = -math.inf, high: float = math.inf, open_low: bool = False
) -> Array:
    """Return `value` as a non-empty array of finite floats in [low, high], or in (low, high] if `open_low`."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise refuse(what, value, "must be a number", "give a number or an array of numbers") from None
    if not array.size:
        raise refuse(what, "[]", "is empty", "give at least one value")
    inside = np.isfinite(array) & (array <= high) & ((array > low) if open_low else (array >= low))
    if not inside.all():
        worst = float(array[~inside].flat[0]) if array.ndim else value
        left = f"{'(' if open_low else '['}{low:g}" if low > -math.inf else "(-∞"
        raise refuse(what, worst, f"must be finite and inside {left}, {_right(high)}", "give a value inside the bound")
    return array


def _right(high: float) -> str:
    return f"{high:g}]" if high < math.inf else "∞)"


def positive_definite(what: str, matrix: ArrayLike) -> Array:
    """Return `matrix` as a symmetric positive-definite square array; a number counts as 1 × 1."""
    array = np.atleast_2d(numbers(what, matrix))
    if array.ndim != 2 or array.shape[0] != array.shape[1]:
        raise refuse(f"{what}'s shape", array.shape, "must be square", "give an n × n matrix")
    if not np.allclose(array, array.T, rtol=1e-10, atol=1e-12 * float(np.abs(array).max())):
        raise refuse(what, "not symmetric", "must equal its transpose", "pass (A + A.T) / 2 if that is what you mean")
    smallest = float(np.linalg.eigvalsh(array)[0])
    if smallest <= 0:
        raise refuse(
            f"smallest eigenvalue of {what}", f"{smallest:g}", "must be positive", "give a positive-definite matrix"
        )
    return array


def plain(array: ArrayLike) -> Any:
    """Return a Python number for an array of no dimensions, the array otherwise."""
    result = np.asarray(array)
    return result.item() if result.ndim == 0 else result
