"""Which rank of a group exchanges which tensors.

Every rank has some tensors, or parts of sharded ones (`Layout.pieces`). What only one rank has, it exchanges itself:
with FSDP2 each its own shard. What several have (all of a DDP model; the norms of a tensor-parallel one) the lowest
of them exchanges and broadcasts the answer: two that exchanged it at different moments would drift apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from math import prod

import torch
from torch import Tensor

from easgd.center.layout import Layout, Piece

Key = tuple[str, tuple[int, ...], Piece | None]


@dataclass(frozen=True)
class Broadcast:
    """What one owner gives to the others: elements in all, and where this rank has them (place in it, size, mine)."""

    owner: int
    size: int
    here: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True)
class Plan:
    """One rank's part in the exchanges of its group.

    Attributes:
        layout: what this rank has.
        owned: its stretches of this rank's vector that it exchanges, as (from, to).
        owned_layout: what they are made of.
        owners: the ranks that exchange something.
        broadcasts: what owners give to others, in the order of the owners.
    """

    layout: Layout
    owned: tuple[tuple[int, int], ...]
    owned_layout: Layout
    owners: tuple[int, ...]
    broadcasts: tuple[Broadcast, ...]

    @staticmethod
    def of(layouts: list[Layout], member: int) -> Plan:
        """Make the plan of one rank from what all ranks have."""
        keys = [_keys(layout) for layout in layouts]
        owner: dict[Key, int] = {}
        for m, mine in enumerate(keys):
            for key in mine:
                owner.setdefault(key, m)
        holders = {key: sum(key in mine for mine in map(set, keys)) for key in owner}
        starts = dict(zip(keys[member], accumulate(map(_size, keys[member]), initial=0), strict=False))
        own = [i for i, key in enumerate(keys[member]) if owner[key] == member]
        broadcasts = []
        for m in range(len(layouts)):
            given = [key for key in keys[m] if owner[key] == m and holders[key] > 1]
            if size := sum(map(_size, given)):
                places = accumulate(map(_size, given), initial=0)
                here = [(at, _size(k), starts[k]) for at, k in zip(places, given, strict=False) if k in starts]
                broadcasts.append(Broadcast(m, size, _merged(here)))
        mine = [keys[member][i] for i in own]
        owned = tuple((at, at + size) for at, size, _ in _merged([(starts[k], _size(k), starts[k]) for k in mine]))
        owners = tuple(sorted({m for key, m in owner.items() if _size(key)}))
        return Plan(layouts[member], owned, _part(layouts[member], own), owners, tuple(broadcasts))

    @property
    def size(self) -> int:
        """Elements of this rank's vector."""
        return self.layout.size

    def take_owned(self, vector: Tensor) -> Tensor:
        """Return what this rank exchanges, in the vector's own memory if it is one stretch."""
        if len(self.owned) == 1:
            a, b = self.owned[0]
            return vector[a:b]
        return torch.cat([vector[a:b] for a, b in self.owned]) if self.owned else vector[:0]

    def put_owned_(self, vector: Tensor, part: Tensor) -> None:
        """Write an answer to what this rank exchanged into its vector."""
        at = 0
        for a, b in self.owned:
            if part[at:].data_ptr() != vector[a:].data_ptr():  # else it was answered in place
                vector[a:b] = part[at : at + b - a]
            at += b - a


def _keys(layout: Layout) -> list[Key]:
    return list(zip(layout.names, layout.shapes, layout.pieces or (None,) * len(layout.names), strict=True))


def _size(key: Key) -> int:
    return prod(key[1])


def _part(layout: Layout, indices: list[int]) -> Layout:
    def some(fields: tuple[object, ...]) -> tuple[object, ...]:
        return tuple(fields[i] for i in indices) if fields else ()

    return Layout(*map(some, (layout.names, layout.shapes, layout.strides, layout.dtypes, layout.pieces)))  # type: ignore[arg-type]


def _merged(here: list[tuple[int, int, int]]) -> tuple[tuple[int, int, int], ...]:
    """Join stretches that follow each other at both ends: of a DDP model one is left."""
    out: list[tuple[int, int, int]] = []
    for place, size, mine in here:
        if out and out[-1][0] + out[-1][1] == place and out[-1][2] + out[-1][1] == mine:
            out[-1] = (out[-1][0], out[-1][1] + size, out[-1][2])
        elif size:
            out.append((place, size, mine))
    return tuple(out)
