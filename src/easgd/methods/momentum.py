"""The check that every momentum δ passes."""

from __future__ import annotations

from easgd.errors import refuse


def check_momentum(momentum: float) -> None:
    """Refuse a momentum outside [0, 1)."""
    if not 0 <= momentum < 1:
        raise refuse("momentum", momentum, "δ must lie in [0, 1)", "write momentum=0.99")
