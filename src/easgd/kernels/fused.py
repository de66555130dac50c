"""One pass over memory per exchange: numba loops that run without the interpreter's lock.

An exchange reads a message and the center and writes both: the answer takes the message's place. That is four streams,
and memory is what bounds it; as torch expressions the same work takes three to ten passes.

Elements of an elastic difference that are not finite are left out and counted, so that nothing non-finite enters the
center. Every loop does the same operations in the same order as the plain functions of `easgd.kernels`.
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
_ZERO, _NONE, _ONE = np.float32(0), np.int32(0), np.int32(1)

F = TypeVar("F", bound=Callable[..., Any])


def _jit(function: F) -> F:
    compiled: F = njit(nogil=True, cache=True, boundscheck=False, error_model="numpy")(function)  # type: ignore[assignment]
    return compiled


@_jit
def elastic_(x: Vector, center: Vector, rate: np.float32) -> np.int32:
    """x ← d = rate·(x − center); center += d. Counts elements whose d is not finite; theirs is 0."""
    bad = _NONE
    for i in range(x.size):
        d = (x[i] - center[i]) * rate
        ok = abs(d) <= _LARGEST  # False for NaN too
        d = d if ok else _ZERO
        bad += _NONE if ok else _ONE
        x[i] = d
        center[i] += d
    return bad


@_jit
def elastic_averaged_(x: Vector, center: Vector, average: Vector, rate: np.float32, a: np.float32) -> np.int32:
    """average += a·(center − average) with the old center, then the elastic exchange."""
    bad = _NONE
    for i in range(x.size):
        old = center[i]
        d = (x[i] - old) * rate
        ok = abs(d) <= _LARGEST
        d = d if ok else _ZERO
        bad += _NONE if ok else _ONE
        average[i] += a * (old - average[i])
        x[i] = d
        center[i] = old + d
    return bad


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
