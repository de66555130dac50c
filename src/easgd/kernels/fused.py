"""One pass over memory per exchange: numba loops that run without the interpreter's lock.

An exchange reads a message and the center and writes both: the answer takes the message's place. That is four streams,
and memory is what bounds it; as torch expressions the same work takes three to ten passes.

A difference that is not finite is kept in the answer but not added, and ends a move in place. The sum of squares that
an elastic exchange returns gives the distance to the center without another pass. Every loop does the same operations
in the same order as the functions of `easgd.kernels.plain`.
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
_BLOCK = 16384  # a sum of float32 over a block is exact enough; blocks are added in float64
_AHEAD = 2048  # two blocks of two vectors fit into the smallest cache

F = TypeVar("F", bound=Callable[..., Any])


def _jit(function: F) -> F:
    compiled: F = njit(nogil=True, cache=True, boundscheck=False, error_model="numpy")(function)  # type: ignore[assignment]
    return compiled


def _jit_sum(function: F) -> F:
    # A sum may be taken in any order here: without that freedom it cannot be vectorised. Nothing may be contracted:
    # a fused multiply-add rounds once, and the numbers would no longer be those of the plain functions.
    options = {"nogil": True, "cache": True, "boundscheck": False, "error_model": "numpy", "fastmath": {"reassoc"}}
    compiled: F = njit(**options)(function)  # type: ignore[call-overload]
    return compiled


# In the loops below `q <= _LARGEST` is False for infinity and for NaN: what is not finite, or beyond 1e19, stays out.


@_jit_sum
def _elastic_block_(x: Vector, center: Vector, rate: np.float32) -> np.float32:
    total = _ZERO
    for i in range(x.size):
        d = (x[i] - center[i]) * rate
        q = d * d
        x[i] = d
        center[i] += d if q <= _LARGEST else _ZERO
        total += q
    return total


@_jit
def elastic_(x: Vector, center: Vector, rate: np.float32) -> float:
    """x ← d = rate·(x − center); center += d. Returns Σd²: not finite if a d is not."""
    total = 0.0
    for i in range(0, x.size, _BLOCK):
        total += float(_elastic_block_(x[i : i + _BLOCK], center[i : i + _BLOCK], rate))
    return total


@_jit_sum
def _squares(x: Vector, center: Vector, rate: np.float32) -> np.float32:
    total = _ZERO
    for i in range(x.size):
        d = (x[i] - center[i]) * rate
        total += d * d
    return total


@_jit_sum
def _move_and_look_(
    x: Vector, center: Vector, next_x: Vector, next_center: Vector, rate: np.float32, pull: np.float32
) -> np.float32:
    total = _ZERO
    for i in range(x.size):
        ahead = (next_x[i] - next_center[i]) * rate
        total += ahead * ahead
        apart = x[i] - center[i]
        x[i] -= apart * pull
        center[i] += apart * rate
    return total


@_jit
def _move_block_(x: Vector, center: Vector, rate: np.float32, pull: np.float32) -> None:
    for i in range(x.size):
        apart = x[i] - center[i]
        x[i] -= apart * pull
        center[i] += apart * rate


@_jit
def move_(x: Vector, center: Vector, rate: np.float32, gain: np.float32) -> float:
    """Both ends of the spring at once: d = rate·(x − center); x −= gain·d; center += d. Returns Σd².

    If Σd² is not finite, so is a d, or it is beyond 1e19; its block of elements and all after it are as they were.
    While one block is moved the next is looked at, so that memory is never waited for and is read once.
    """
    # One product per element and end: of two, the compiler may take either first where sums may be taken in any order.
    pull = gain * rate
    total, i, part = 0.0, 0, _squares(x[:_AHEAD], center[:_AHEAD], rate)
    while part <= _LARGEST:
        total += float(part)
        j, k = i + _AHEAD, i + 2 * _AHEAD
        if k <= x.size:
            part = _move_and_look_(x[i:j], center[i:j], x[j:k], center[j:k], rate, pull)
        else:
            _move_block_(x[i:j], center[i:j], rate, pull)
            if j >= x.size:
                return total
            part = _squares(x[j:], center[j:], rate)
        i = j
    return np.inf


@_jit_sum
def _averaged_block_(x: Vector, center: Vector, average: Vector, rate: np.float32, a: np.float32) -> np.float32:
    total = _ZERO
    for i in range(x.size):
        old = center[i]
        d = (x[i] - old) * rate
        q = d * d
        average[i] += a * (old - average[i])
        x[i] = d
        center[i] = old + (d if q <= _LARGEST else _ZERO)
        total += q
    return total


@_jit
def elastic_averaged_(x: Vector, center: Vector, average: Vector, rate: np.float32, a: np.float32) -> float:
    """average += a·(center − average) with the old center, then the elastic exchange. Returns Σd²."""
    total = 0.0
    for i in range(0, x.size, _BLOCK):
        end = i + _BLOCK
        total += float(_averaged_block_(x[i:end], center[i:end], average[i:end], rate, a))
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
