"""The loops over memory that an exchange is made of, on flat tensors, in place.

A kernel knows vectors and scalars, nothing of workers, clocks or methods. Functions that end in `_` change their
first argument.
"""

from __future__ import annotations

from torch import Tensor


def elastic(x: Tensor, center: Tensor, rate: float) -> Tensor:
    """Return the elastic difference d = rate·(x − center)."""
    return (x - center).mul_(rate)


def add_(center: Tensor, d: Tensor) -> None:
    """center += d."""
    center.add_(d)


def momentum_(center: Tensor, velocity: Tensor, d: Tensor, momentum: float) -> None:
    """velocity ← momentum·velocity + d; center += momentum·velocity (the printed MDOWNPOUR)."""
    velocity.mul_(momentum).add_(d)
    center.add_(velocity, alpha=momentum)


def average_(average: Tensor, center: Tensor, rate: float) -> None:
    """average ← (1 − rate)·average + rate·center."""
    average.lerp_(center, rate)
