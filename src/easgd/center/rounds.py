"""Workers of one machine that act in order: one after the other, or all together. Both survive the death of any."""

from __future__ import annotations

import time
from typing import NoReturn

from torch import Tensor

from easgd.center.control import (
    ABSORBED,
    APPLIED,
    ARRIVED,
    INCARNATIONS,
    JOINED,
    LIVES,
    RING,
    ROUND,
    STATES,
    STRIPE_VERSIONS,
    STRIPES,
    TURN,
)
from easgd.center.gate import Gate
from easgd.center.locks import RecordLocks
from easgd.center.segment import Segment
from easgd.methods import Method

POLL = 2e-4
LOOK_SECONDS = 0.2


class Rounds:
    """One worker's part in turns and in synchronous rounds."""

    def __init__(self, segment: Segment, locks: RecordLocks, gate: Gate, method: Method, rank: int) -> None:
        self.segment, self.locks, self.gate, self.method, self.rank = segment, locks, gate, method, rank
        self.control, self.words = segment.control, segment.control.words
        self._next_look = 0.0

    # one after the other ---------------------------------------------------------------------------------------

    def wait_turn(self, deadline: float) -> None:
        """Wait until it is this rank's turn; ranks that have left or died are passed over."""
        end, words = time.monotonic() + deadline, self.words
        while (holder := words[TURN] % words[RING]) != self.rank:
            if words[STATES + holder] != JOINED:
                with self.control.changing():
                    if words[TURN] % words[RING] == holder:
                        words[TURN] += 1
                continue
            self._bury_the_dead()
            if time.monotonic() > end:
                self._too_late(f"no turn within {deadline:g} s, worker {holder} holds it")
            time.sleep(POLL)

    def pass_turn(self) -> None:
        """The next worker may act."""
        with self.control.changing():
            self.words[TURN] += 1

    # all together ----------------------------------------------------------------------------------------------

    def exchange(self, d: Tensor | None, deadline: float) -> float:
        """Equations 3 and 4: add this worker's d, if it has one, to the round's sum; return the seconds of waiting."""
        mine = self.words[ROUND]
        if d is not None:
            for s, (a, b) in enumerate(self.segment.bounds):
                with self.locks.threads, self.locks.hold(STRIPES + s):
                    self.segment.slots["sum"][a:b] += d[a:b]
        with self.control.changing():
            self.words[ARRIVED + self.rank] = mine + 1
            self.words[APPLIED] += d is not None
        start = time.perf_counter()
        self._meet(mine, deadline)
        return time.perf_counter() - start

    def _meet(self, mine: int, deadline: float) -> None:
        """Wait until round `mine` is over; whoever sees that all living have arrived ends it."""
        words, end = self.words, time.monotonic() + deadline
        while words[ROUND] == mine:
            with self.control.changing():
                if words[ROUND] == mine and self.control.all_arrived():
                    if words[APPLIED]:
                        self._absorb_sum()
                    words[APPLIED] = 0
                    words[ROUND] += 1
                    return
            self._bury_the_dead()
            if time.monotonic() > end:
                self._too_late(f"round {mine} is not complete after {deadline:g} s")
            time.sleep(POLL)

    def _absorb_sum(self) -> None:
        """Update the center with the round's sum, stripe by stripe, inside the gate.

        Whoever is killed in here leaves the next stripe's number in a word, and the stripe it was at has given up its
        part of the sum before it changes: the next worker goes on from there, and nothing is applied twice.
        """
        with self.gate.closed():
            for s in range(self.words[ABSORBED], self.segment.stripes):
                a, b = self.segment.bounds[s]
                part = {name: slot[a:b] for name, slot in self.segment.slots.items()}
                d = part["sum"].clone()
                part["sum"].zero_()
                self.method.update_(part, d, self.words[STRIPE_VERSIONS + s])
                self.words[STRIPE_VERSIONS + s] += 1
                self.words[ABSORBED] = s + 1
            self.words[ABSORBED] = 0

    # the dead --------------------------------------------------------------------------------------------------

    def _bury_the_dead(self) -> None:
        """While waiting for others, look now and then whether they live: a dead worker's life lock is open."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_SECONDS
        for rank in self.control.joined():
            # The incarnation is read before the lock is tried, and buried before it is let go: a new one that enters
            # in between is not the one that is meant.
            incarnation = self.words[INCARNATIONS + rank]
            if rank != self.rank and self.locks.try_take(LIVES + rank):
                self.control.bury(rank, incarnation)
                self.locks.release(LIVES + rank)

    def _too_late(self, why: str) -> NoReturn:
        raise TimeoutError(f"worker {self.rank}: {why}; give attach a longer deadline")
