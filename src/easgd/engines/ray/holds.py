"""Snapshots of a center that are under way: which exchanges they hold up at a shard, and until when."""

from __future__ import annotations

from dataclasses import dataclass

from easgd.runtime import time

HOLD_SECONDS = 20.0

Allowed = dict[tuple[int, int], int]
"""(worker, fragment) -> up to which sequence it may come in"""


@dataclass
class Hold:
    """One snapshot under way."""

    allowed: Allowed
    until: float


class Holds:
    """All snapshots under way at one shard, by their tickets. The caller has the shard's lock."""

    def __init__(self) -> None:
        self._holds: dict[str, Hold] = {}

    def __contains__(self, ticket: str) -> bool:
        return ticket in self._holds

    def begin(self, ticket: str, allowed: Allowed) -> None:
        """Hold up what goes beyond this; for a while, in case whoever asked for it dies."""
        self._holds[ticket] = Hold(allowed, time.monotonic() + HOLD_SECONDS)

    def allow(self, ticket: str, allowed: Allowed) -> None:
        """Let in what other shards have let in already."""
        if ticket in self._holds:
            self._holds[ticket].allowed = allowed

    def end(self, ticket: str) -> None:
        """The snapshot has been taken, or given up."""
        self._holds.pop(ticket, None)

    def until(self, rank: int, fragment: int, sequence: int) -> float | None:
        """Until when a snapshot may hold this exchange up; None if none does."""
        now = time.monotonic()
        for ticket in [ticket for ticket, hold in self._holds.items() if now > hold.until]:
            del self._holds[ticket]  # whoever held it is gone
        behind = [hold.until for hold in self._holds.values() if sequence > hold.allowed.get((rank, fragment), -1)]
        return min(behind, default=None)
