"""Elementwise operations of an exchange on flat tensors, as torch expressions.

Functions whose name ends in `_` change their first argument.
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
