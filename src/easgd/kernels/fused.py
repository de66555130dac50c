"""One pass over memory per exchange: numba loops that run without the interpreter's lock.

An exchange reads a message and the center and writes both: the answer takes the message's place. That is four streams,
and memory is what bounds it; as torch expressions the same work takes three to ten passes.

A difference that is not finite is kept in the answer but not added. The sum of squares that an elastic exchange returns
gives the distance to the center without another pass. Every loop does the same operations in the same order as the
functions of `easgd.kernels.plain`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from numba import njit

Vector = npt.NDArray[np.float32]
f32 = np.float32
_LARGEST = np.float32(np.finfo(np.float32).max)
_ZERO = np.float32(0)
_BLOCK = 1024  # two blocks of 4 KiB stay in the first-level cache between the exchange and the sum over it

F = TypeVar("F", bound=Callable[..., Any])


def _jit(function: F) -> F:
    compiled: F = njit(nogil=True, cache=True, boundscheck=False, error_model="numpy")(function)  # type: ignore[assignment]
    return compiled


def _jit_sum(function: F) -> F:
    # A sum may be taken in any order here: without that freedom it cannot be vectorised.
    options = {"nogil": True, "cache": True, "boundscheck": False, "fastmath": {"reassoc", "contract"}}
    compiled: F = njit(**options)(function)  # type: ignore[call-overload]
    return compiled


@_jit_sum
def squares(d: Vector) -> np.float32:
    """Σ d²."""
    total = _ZERO
    for i in range(d.size):
        total += d[i] * d[i]
    return total


@_jit
def _elastic_block_(x: Vector, center: Vector, rate: np.float32) -> None:
    for i in range(x.size):
        d = (x[i] - center[i]) * rate
        x[i] = d
        center[i] += d if abs(d) <= _LARGEST else _ZERO  # the comparison is False for NaN too


@_jit
def _averaged_block_(x: Vector, center: Vector, average: Vector, rate: np.float32, a: np.float32) -> None:
    for i in range(x.size):
        old = center[i]
        d = (x[i] - old) * rate
        average[i] += a * (old - average[i])
        x[i] = d
        center[i] = old + (d if abs(d) <= _LARGEST else _ZERO)


@_jit
def elastic_(x: Vector, center: Vector, rate: np.float32) -> float:
    """x ← d = rate·(x − center); center += d. Returns Σd²: not finite if a d is not."""
    total = 0.0
    for start in range(0, x.size, _BLOCK):
        end = min(start + _BLOCK, x.size)
        _elastic_block_(x[start:end], center[start:end], rate)
        total += float(squares(x[start:end]))
    return total


@_jit
def _elastic_from_block_(x: Vector, center: Vector, d: Vector, rate: np.float32) -> None:
    for i in range(x.size):
        change = (x[i] - center[i]) * rate
        d[i] = change
        center[i] += change if abs(change) <= _LARGEST else _ZERO


@_jit
def elastic_from_(x: Vector, center: Vector, d: Vector, rate: np.float32) -> float:
    """d ← rate·(x − center); center += d; x is only read. Returns Σd²."""
    total = 0.0
    for start in range(0, x.size, _BLOCK):
        end = min(start + _BLOCK, x.size)
        _elastic_from_block_(x[start:end], center[start:end], d[start:end], rate)
        total += float(squares(d[start:end]))
    return total


@_jit
def elastic_averaged_(x: Vector, center: Vector, average: Vector, rate: np.float32, a: np.float32) -> float:
    """average += a·(center − average) with the old center, then the elastic exchange. Returns Σd²."""
    total = 0.0
    for start in range(0, x.size, _BLOCK):
        end = min(start + _BLOCK, x.size)
        _averaged_block_(x[start:end], center[start:end], average[start:end], rate, a)
        total += float(squares(x[start:end]))
    return total


@_jit
def _subtract_block_(x: Vector, d: Vector) -> None:
    for i in range(x.size):
        x[i] -= d[i]


@_jit
def subtract_(x: Vector, d: Vector) -> float:
    """x −= d. Returns Σx² of the result: not finite if an element is not."""
    total = 0.0
    for start in range(0, x.size, _BLOCK):
        end = min(start + _BLOCK, x.size)
        _subtract_block_(x[start:end], d[start:end])
        total += float(squares(x[start:end]))
    return total


@_jit
def add_answer_(change: Vector, center: Vector) -> None:
    """center += change; change ← center (DOWNPOUR's push and pull)."""
    for i in range(change.size):
        new = center[i] + change[i]
        center[i] = new
        change[i] = new


@_jit
def momentum_answer_(change: Vector, center: Vector, velocity: Vector, momentum: np.float32) -> None:
    """velocity ← momentum·velocity + change; center += momentum·velocity; change ← center (MDOWNPOUR)."""
    for i in range(change.size):
        v = velocity[i] * momentum + change[i]
        velocity[i] = v
        new = center[i] + v * momentum
        center[i] = new
        change[i] = new


@_jit
def swap_(a: Vector, b: Vector) -> None:
    """Exchange two vectors: the same four streams with no arithmetic, the limit that `easgd bench exchange` shows."""
    for i in range(a.size):
        t = a[i]
        a[i] = b[i]
        b[i] = t
