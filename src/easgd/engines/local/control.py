"""The control words at the head of a run's shared memory: clocks, turns, rounds, and who is in the run.

Only the standard library: a launcher that sees a worker die marks it here at once, without importing torch.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from easgd.center.guard import WORDS
from easgd.locks import RecordLocks
from easgd.runtime import time

CENTER, HEADER, LOCKS, ROLLS = "center", "header.json", "locks", "rolls.jsonl"
CENTERS = "centers"  # folder of the further centers of a script that trains several models
RANKS, STRIPES_MOST = 1024, 1024
ABSENT, JOINED, LEFT, DEAD = range(4)

# words: counters, then one word per rank six times over, then the clock of each stripe (`CenterState`), then how many
# workers have added to each fragment in the present round, then the last distances of each rank (`Guard`)
CLOSING, LIVING, TURN, RING, ROUND, ROLL, ABSORBED, ORIGIN = range(8)
AGREED = 8  # two words, for even and odd rounds: the largest pace that was brought to one
STATES, INCARNATIONS, ARRIVED, ADDED, DIGESTS, PACES, STRIPE_CLOCKS = (64 + k * RANKS for k in range(7))
CLOCK_WORDS = 2
APPLIED = STRIPE_CLOCKS + CLOCK_WORDS * STRIPES_MOST
DISTANCES = APPLIED + STRIPES_MOST
TABLE = WORDS * RANKS
TABLES = 16  # of distances: fragments are judged by their own; where there are more, neighbours share one
BYTES = -(-8 * (DISTANCES + TABLES * TABLE) // mmap.PAGESIZE) * mmap.PAGESIZE

# bytes of the lock file
CONTROL, TURNSTILE, GATE, OPENING, UPLINK, STRIPES, LIVES = 0, 1, 2, 3, 4, 1 << 10, 1 << 20


class Control:
    """The words of one run, and the lock that guards changes of more than one of them."""

    def __init__(self, folder: Path) -> None:
        with open(folder / CENTER, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), BYTES)
        self.words = memoryview(self._map).cast("q")
        distances = memoryview(self._map)[8 * DISTANCES : 8 * (DISTANCES + TABLES * TABLE)].cast("d")
        self.distances = [distances[k * TABLE : (k + 1) * TABLE] for k in range(TABLES)]
        self.locks = RecordLocks.of(folder / LOCKS)
        self._rolls = folder / ROLLS if (folder / ROLLS).is_symlink() else None  # into the run's history

    @staticmethod
    def exists(folder: Path) -> bool:
        """Whether a first worker has laid out the run's memory: the header is the last thing that it writes."""
        return (folder / HEADER).exists()

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Hold the lock that guards changes of more than one word."""
        with self.locks.threads, self.locks.hold(CONTROL):
            yield

    def begin(self, elapsed: float) -> float:
        """The moment at which training began, on the machine's monotonic clock; the first to ask decides.

        A resumed run has `elapsed` seconds behind it.
        """
        with self.changing():
            if not self.words[ORIGIN]:
                self.words[ORIGIN] = int(1e9 * (time.monotonic() - elapsed))
        return self.words[ORIGIN] / 1e9

    def enter(self, rank: int, incarnation: int) -> None:
        """Mark a worker as joined; whatever a former incarnation left is forgotten."""
        with self.changing():
            # In this order: one that is killed between the two is marked dead by its own incarnation.
            self.words[INCARNATIONS + rank] = incarnation
            self.words[STATES + rank] = JOINED
            # What a former incarnation left of a synchronous round does not count for this one.
            self.words[ARRIVED + rank] = self.words[ADDED + rank] = self.words[PACES + rank] = 0
            self.words[RING] = max(self.words[RING], rank + 1)
            self._forget_distances(rank)
            self._count()

    def leave(self, rank: int) -> None:
        """Mark a worker as gone of its own will: nobody waits for it any more."""
        with self.changing():
            self.words[STATES + rank] = LEFT
            self._count()

    def mark_dead(self, rank: int, incarnation: int) -> None:
        """Mark a worker dead, if that incarnation is still in the run."""
        with self.changing():
            # A worker that died before it joined is dead too, and one that ended after it left: nobody need wait for
            # them, at this center or at a later one.
            if self.words[INCARNATIONS + rank] == incarnation:
                self.words[STATES + rank] = DEAD
                self._forget_distances(rank)
                self._count()

    def mark_killed(self, own: int) -> None:
        """Mark the workers whose life lock is open as dead; a process cannot ask for its own."""
        for rank in self.joined():
            # The incarnation is read before the lock is tried, and marked before it is let go: a new one that enters
            # in between is not the one that is meant.
            incarnation = self.words[INCARNATIONS + rank]
            if rank != own and self.locks.try_take(LIVES + rank):
                self.mark_dead(rank, incarnation)
                self.locks.release(LIVES + rank)

    def same_gradient(self, rank: int, digest: int) -> list[int]:
        """Note the digest of a worker's first gradient; return the ranks that noted the same before."""
        words = self.words
        with self.changing():
            # Also of those that have left: a short script may be over before another worker has begun.
            known = range(words[RING])
            same = [other for other in known if other != rank and words[DIGESTS + other] == digest]
            words[DIGESTS + rank] = digest
        return same

    def joined(self) -> list[int]:
        """The ranks that are in the run."""
        return [rank for rank, state in enumerate(self.words[STATES : STATES + RANKS]) if state == JOINED]

    def absent(self, launched: int) -> list[int]:
        """The launched ranks that have not come yet."""
        return [rank for rank, state in enumerate(self.words[STATES : STATES + launched]) if state == ABSENT]

    def dead(self) -> set[int]:
        """The ranks whose process has ended."""
        return {rank for rank, state in enumerate(self.words[STATES : STATES + RANKS]) if state == DEAD}

    def all_arrived(self) -> bool:
        """Whether every worker in the run has reached the meeting of the current round."""
        current = self.words[ROUND] + 1
        return all(self.words[ARRIVED + rank] == current for rank in self.joined())

    def _forget_distances(self, rank: int) -> None:
        for table in range(TABLES):
            self.words[DISTANCES + table * TABLE + WORDS * rank] = 0  # no message in its row; see `Guard`

    def _count(self) -> None:
        joined = self.joined()
        self.words[LIVING] = len(joined)
        self.words[ROLL] += 1
        if self._rolls is not None:
            self._write_roll(self._rolls, joined)

    def _write_roll(self, path: Path, members: list[int]) -> None:
        roll = {"serial": self.words[ROLL], "members": members, "living": max(1, self.words[LIVING])}
        with suppress(OSError), open(path, "ab", buffering=0) as file:
            file.write(json.dumps({**roll, "order": time.monotonic_ns()}).encode() + b"\n")


def origin(folder: str | os.PathLike[str]) -> float | None:
    """The moment at which the training in `folder` began, if it has."""
    began = [control.words[ORIGIN] / 1e9 for control in _controls(Path(folder))]
    return min((moment for moment in began if moment), default=None)


def mark_dead(folder: str | os.PathLike[str], rank: int, incarnation: int) -> None:
    """Mark a worker of the run in `folder` dead at all its centers: a launcher calls it when it sees a death."""
    for control in _controls(Path(folder)):
        control.mark_dead(rank, incarnation)


def ended(run: Path) -> set[int]:
    """The ranks that are known to be dead at any center of a run."""
    return {rank for control in _controls(run) for rank in control.dead()}


def _controls(run: Path) -> Iterator[Control]:
    for center in (run, *Path(run, CENTERS).glob("*")):
        if Control.exists(center):
            yield Control(center)
