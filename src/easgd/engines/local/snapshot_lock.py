"""The lock between exchanges and snapshots of a center in shared memory: exchanges share it, a snapshot is alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from easgd.engines.local.control import CLOSING, GATE, TURNSTILE
from easgd.locks import RecordLocks
from easgd.runtime import time

POLL = 5e-4


class SnapshotLock:
    """A reader-writer lock over record locks, with a turnstile before it so that a snapshot cannot starve."""

    def __init__(self, locks: RecordLocks, words: memoryview[int]) -> None:
        self.locks, self.words = locks, words

    def enter(self) -> float:
        """Take the shared side for one exchange, behind a snapshot that waits; return the seconds of waiting."""
        if self.words[CLOSING]:
            with self.locks.hold(TURNSTILE):
                return self.locks.take(GATE, shared=True)
        return self.locks.take(GATE, shared=True)

    def leave(self) -> None:
        """Release the shared side."""
        self.locks.release(GATE)

    @contextmanager
    def closed(self, patience: float | None = None) -> Iterator[bool]:
        """Hold off new exchanges until the running ones have ended, then be alone; False if that takes over `patience`.

        Whoever is killed in here leaves the word set: exchanges then take one lock more, until the next snapshot.
        """
        end = None if patience is None else time.monotonic() + patience
        with self.locks.threads:
            if not self._take(TURNSTILE, end):
                yield False
                return
            try:
                self.words[CLOSING] = 1
                if not self._take(GATE, end):
                    yield False
                    return
                try:
                    self.words[CLOSING] = 0
                    yield True
                finally:
                    self.locks.release(GATE)
            finally:
                self.words[CLOSING] = 0
                self.locks.release(TURNSTILE)

    def _take(self, byte: int, end: float | None) -> bool:
        """Take a lock, if there is an end only before it."""
        if end is None:
            self.locks.take(byte)
            return True
        while not self.locks.try_take(byte):
            if time.monotonic() > end:
                return False
            time.sleep(POLL)
        return True
