"""The members of a run on a cluster: incarnations, round-robin turns, and the model that a worker must fit.

One membership per center. It is plain data, so that the coordinator can store it and be restarted from it.
"""

from __future__ import annotations

import itertools
from typing import Any

ABSENT, JOINED, LEFT, DEAD = "absent", "joined", "left", "dead"
_MODEL = ("shards", "header", "bounds", "rest", "aliases")
LEAST_SHARD = 65_536  # elements; below, the additional message costs more than it saves


def bounds_for(size: int, shards: int) -> list[tuple[int, int]]:
    """Cut a vector into at most `shards` contiguous stretches of about equal length."""
    used = max(1, min(shards, size // LEAST_SHARD))
    # Multiples of 1024 keep blocks of the int8 codec, and cache lines, whole.
    edges = [round(size * k / used / 1024) * 1024 for k in range(used)] + [size]
    return [(int(a), int(b)) for a, b in itertools.pairwise(edges)]


class Membership:
    """The members of one center."""

    def __init__(self, shards: int) -> None:
        self.shards = shards
        self.header: dict[str, Any] | None = None
        self.bounds: list[tuple[int, int]] = []
        self.opened = False
        self.uploader: tuple[int, int] | None = None
        self.states: dict[int, str] = {}
        self.incarnations: dict[int, int] = {}
        self.dead: dict[int, int] = {}
        self.serial = 0  # counts announcements: a shard that has received a later one ignores an earlier
        self.digests: dict[int, int] = {}  # rank -> digest of its first gradient
        self.turn = 0
        self.began: float | None = None
        self.rest: bytes | None = None
        self.aliases: dict[str, str] = {}

    def open(self, rank: int, incarnation: int, header: dict[str, Any]) -> bool:
        """Note a worker's model; return whether this worker must upload the start value."""
        if self.header is None:
            self.header = header
            self.bounds = bounds_for(header["size"], self.shards)
        if not self.opened and self.uploader is None:
            self.uploader = (rank, incarnation)
        return not self.opened and self.uploader == (rank, incarnation)

    def join(self, rank: int, incarnation: int) -> bool:
        """Add a worker; False if it is known to be dead."""
        if self.dead.get(rank, -1) >= incarnation:
            return False
        self.states[rank], self.incarnations[rank] = JOINED, incarnation
        if incarnation:
            self.dead[rank] = max(self.dead.get(rank, -1), incarnation - 1)
        return True

    def leave(self, rank: int, incarnation: int) -> bool:
        """Return whether this changes anything."""
        return self._end(rank, incarnation, LEFT)

    def mark_dead(self, rank: int, incarnation: int) -> bool:
        """Return whether this changes anything."""
        self.dead[rank] = max(self.dead.get(rank, -1), incarnation)
        if self.uploader == (rank, incarnation) and not self.opened:
            self.uploader = None  # the next worker uploads the start value
        if self.states.get(rank, ABSENT) == ABSENT:
            self.states[rank] = DEAD  # `missing` must not count it
        return self._end(rank, incarnation, DEAD)

    def _end(self, rank: int, incarnation: int, state: str) -> bool:
        if self.states.get(rank) != JOINED or self.incarnations.get(rank) != incarnation:
            return False
        self.states[rank] = state
        return True

    def members(self) -> list[int]:
        """The ranks that are in the run."""
        return sorted(rank for rank, state in self.states.items() if state == JOINED)

    def missing(self, launched: int) -> int:
        """How many of the launched ranks have not come yet."""
        return sum(self.states.get(rank, ABSENT) == ABSENT for rank in range(launched))

    def holder(self) -> int:
        """Whose turn it is, round-robin; ranks that have left or died are passed over."""
        members = self.members()
        ring = max(members, default=0) + 1
        while members and self.turn % ring not in members:
            self.turn += 1
        return self.turn % ring

    def model(self) -> dict[str, Any]:
        """Return what describes the model; it changes when the first worker comes and when the first one leaves."""
        return {name: vars(self)[name] for name in _MODEL}

    def changes(self) -> dict[str, Any]:
        """Return all the rest, which is small and changes often."""
        return {name: value for name, value in vars(self).items() if name not in _MODEL}

    def dump(self) -> dict[str, Any]:
        return dict(vars(self))

    @staticmethod
    def load(data: dict[str, Any]) -> Membership:
        """Return the membership that gave this data, by `dump` or by `model` and `changes` together."""
        membership = Membership(data["shards"])
        vars(membership).update(data)
        return membership
