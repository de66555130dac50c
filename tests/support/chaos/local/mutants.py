"""Breakages of the local engine, one at a time: the simulation must notice each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from easgd.center.state import CenterState
from easgd.engines.local.control import ABSORBED, APPLIED, STRIPES, STRIPES_MOST, Control
from easgd.engines.local.rounds import Rounds
from easgd.engines.local.snapshot_lock import SnapshotLock
from easgd.locks import RecordLocks


@contextmanager
def open_gate() -> Iterator[None]:
    """Exchanges do not take the snapshot lock."""
    with patch.object(SnapshotLock, "enter", lambda self: 0.0), patch.object(SnapshotLock, "leave", lambda self: None):
        yield


@contextmanager
def open_stripes() -> Iterator[None]:
    """A stripe is changed without its lock."""
    take, release = RecordLocks.take, RecordLocks.release

    def of_a_stripe(byte: int) -> bool:
        return STRIPES <= byte < STRIPES + STRIPES_MOST

    def not_taken(self: RecordLocks, byte: int, *, shared: bool = False) -> float:
        return 0.0 if of_a_stripe(byte) else take(self, byte, shared=shared)

    def not_released(self: RecordLocks, byte: int) -> None:
        if not of_a_stripe(byte):
            release(self, byte)

    with patch.object(RecordLocks, "take", not_taken), patch.object(RecordLocks, "release", not_released):
        yield


@contextmanager
def unmarked_round() -> Iterator[None]:
    """Whoever takes over a round from a dead worker does not know which stripes are done."""

    def from_the_start(self: Rounds) -> None:
        brought = [f for f in range(len(self.segment.fragments)) if self.words[APPLIED + f]]
        if brought:
            with self.snapshot_lock.closed():
                for s in (s for f in brought for s in self.segment.stripes[f]):
                    self.states[s].end_round()
                for f in brought:
                    self.words[APPLIED + f] = 0
        self.words[ABSORBED] = 0

    with patch.object(Rounds, "_absorb_sum", from_the_start):
        yield


@contextmanager
def kept_sum() -> Iterator[None]:
    """The sum of a round is given up when it is in the center, not before."""

    def end_round(self: CenterState) -> None:
        assert self._total is not None
        d = self._total.clone()
        if self.journal is not None:
            self.journal.note(self, "round", d)
        self._update(d)
        self._total.zero_()

    with patch.object(CenterState, "end_round", end_round):
        yield


@contextmanager
def waited_for() -> Iterator[None]:
    """Who waits in a round or for its turn does not look whether the others live, and the launcher does not say."""
    with patch.object(Control, "mark_killed", lambda self, own: None), patch.object(Control, "mark_dead", _nothing):
        yield


def _nothing(*_: Any) -> None:
    pass


MUTANTS: dict[str, Callable[[], Any]] = {
    "open gate": open_gate,
    "open stripes": open_stripes,
    "unmarked round": unmarked_round,
    "kept sum": kept_sum,
    "waited for": waited_for,
}
