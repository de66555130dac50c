"""Names of the centers of a sharded model: each rank of a group has one for its part, and all groups share them."""

from __future__ import annotations

from collections.abc import Iterable

_SHARD = ".shard-"


def shard_name(center: str, member: int) -> str:
    """The name of the center that keeps one rank's part of a sharded model."""
    return f"{center}{_SHARD}{member}"


def by_model(centers: Iterable[str]) -> dict[str, list[str]]:
    """Group the names of a run's centers by model: one that is sharded over a group's ranks has several.

    >>> by_model(["center.shard-0", "center.shard-1", "generator"])
    {'center': ['center.shard-0', 'center.shard-1'], 'generator': ['generator']}
    """
    out: dict[str, list[str]] = {}
    for name in centers:
        model, found, member = name.rpartition(_SHARD)
        out.setdefault(model if found and member.isdigit() else name, []).append(name)
    return out
