"""One pass over memory per exchange: numba loops that run outside the interpreter lock.

An exchange reads a message and the center and writes both, the answer over the message: two reads and two writes,
bounded by memory bandwidth. As torch expressions the same work takes three to ten passes.

A difference that is not finite is returned in the answer but not added to the center, and it stops a move in place. An
elastic exchange returns the sum of squares, from which the distance to the center follows without another pass. Every
loop does the operations of `easgd.kernels.plain` in the same order.
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
_ZERO, _ONE = np.float32(0), np.float32(1)
_BLOCK = 16384  # sums are float32 within a block and float64 over blocks: fast, and accurate enough
_AHEAD = 2048  # two blocks of two vectors fit into the first-level cache

F = TypeVar("F", bound=Callable[..., Any])


def _jit(function: F) -> F:
    compiled: F = njit(nogil=True, cache=True, boundscheck=False, error_model="numpy")(function)  # type: ignore[assignment]
    return compiled


def _jit_sum(function: F) -> F:
    # "reassoc" lets the compiler reorder sums, without which it cannot vectorise them. It may not contract: a fused
    # multiply-add rounds once, and the results would differ from those of the plain functions.
    options = {"nogil": True, "cache": True, "boundscheck": False, "error_model": "numpy", "fastmath": {"reassoc"}}
    compiled: F = njit(**options)(function)  # type: ignore[call-overload]
    return compiled


# In the loops `q <= _LARGEST` is False for infinity and NaN: a d that is not finite, or beyond 1e19, is not added.


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
    """x ← d = rate·(x − center); center += d. Return Σd², which is not finite if a d is not."""
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
    """Move both ends of the spring: d = rate·(x − center); x −= gain·d; center += d. Return Σd².

    If a d is not finite or beyond 1e19, the result is infinite, and its block and all blocks after it are unchanged.
    """
    # Each block is checked while the one before it is moved, so that memory is read only once.
    # gain·rate is computed here: in a loop with "reassoc" the compiler could multiply in either order.
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


@_jit
def apart(x: Vector, center: Vector) -> float:
    """Return Σ(x − center)², which is not finite if a difference is not finite or beyond 1e19."""
    total = 0.0
    for i in range(0, x.size, _BLOCK):
        total += float(_squares(x[i : i + _BLOCK], center[i : i + _BLOCK], _ONE))
    return total


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
    """average += a·(center − average) with the old center, then `elastic_`. Return Σd²."""
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
    """Swap two vectors: the memory accesses of an exchange without its arithmetic, for `easgd bench exchange`."""
    for i in range(a.size):
        t = a[i]
        a[i] = b[i]
        b[i] = t
