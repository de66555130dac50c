"""Workers of one machine that act in order: one after the other, or all together. Both survive the death of any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import torch
from torch import Tensor

from easgd.center.state import CenterState
from easgd.engines.local.control import (
    ABSORBED,
    ADDED,
    AGREED,
    APPLIED,
    ARRIVED,
    JOINED,
    PACES,
    RING,
    ROUND,
    STATES,
    STRIPES_MOST,
    TURN,
)
from easgd.engines.local.segment import Segment
from easgd.engines.local.snapshot_lock import SnapshotLock
from easgd.locks import RecordLocks
from easgd.runtime import time

POLL = 2e-4
LOOK_SECONDS = 0.2


class Rounds:
    """One worker's part in turns and in synchronous rounds."""

    def __init__(
        self, segment: Segment, states: Sequence[CenterState], locks: RecordLocks, snapshot_lock: SnapshotLock,
        rank: int,
    ) -> None:  # fmt: skip
        self.segment, self.states, self.locks, self.snapshot_lock = segment, states, locks, snapshot_lock
        self.control, self.words, self.rank = segment.control, segment.control.words, rank
        self._next_look, self.agreed = 0.0, 0

    # one after the other ---------------------------------------------------------------------------------------

    def wait_turn(self, deadline: float) -> None:
        """Wait until it is this rank's turn; ranks that have left or died are passed over."""
        words = self.words

        def mine() -> bool:
            holder = words[TURN]
            if words[STATES + holder] != JOINED:
                with self.control.changing():
                    if words[TURN] == holder:
                        self._next_turn()
            return holder == self.rank

        self._wait(mine, deadline, lambda: f"no turn within {deadline:g} s, worker {words[TURN]} holds it")

    def pass_turn(self) -> None:
        """Let the next worker act."""
        with self.control.changing():
            self._next_turn()

    def _next_turn(self) -> None:
        # The word is the holder's rank, not a count of turns: the ring may grow while somebody holds the turn.
        self.words[TURN] = (self.words[TURN] + 1) % self.words[RING]

    # all together ----------------------------------------------------------------------------------------------

    def propose(self, message: Tensor | None, scale: float, fragment: int) -> Tensor | None:
        """Return the change that this worker's message, known to be finite, asks for on each stripe of its fragment."""
        if message is None:
            return None
        parts = [(self.states[s], self._place(s, fragment)) for s in self.segment.stripes[fragment]]
        return torch.cat([state.method.propose(state.slots, message[at], scale) for state, at in parts])

    def answer(self, d: Tensor | None, fragment: int) -> Tensor:
        """Return what this worker gets at the end of a round to which it brought d."""
        if d is not None and self.states[0].method.is_elastic:
            return d
        return torch.cat([self.states[s].x for s in self.segment.stripes[fragment]])

    def exchange(self, d: Tensor | None, deadline: float, fragment: int, scale: float = 1.0) -> float:
        """Equations 3 and 4: add this worker's d, if it has one, to the round's sum; return the seconds of waiting.

        A round is a meeting of all workers. They bring the same fragment but for one that joined later: each fragment
        is updated with what was brought of it.
        """
        start, mine = time.perf_counter(), self.words[ROUND]
        spent = self._add(d, mine, deadline, fragment, scale)
        with self.control.changing():
            self.words[ARRIVED + self.rank] = mine + 1
            agreed = AGREED + mine % 2
            self.words[agreed] = max(self.words[agreed], self.words[PACES + self.rank])
            self.words[APPLIED + fragment] += d is not None
        self._meet(mine, deadline)
        # Nobody can be in the round after the next before this worker is in the next: the word is still this round's.
        self.agreed = self.words[agreed]
        return time.perf_counter() - start - spent

    def _place(self, s: int, fragment: int) -> slice:
        """Where a stripe lies in its fragment."""
        (a, b), start = self.segment.bounds[s], self.segment.fragments[fragment][0]
        return slice(a - start, b - start)

    def _add(self, d: Tensor | None, mine: int, deadline: float, fragment: int, scale: float) -> float:
        """Add d to the round's sum, stripe by stripe behind the next lower rank; return the seconds of work.

        A floating-point sum depends on its order, and two runs must not differ: so a stripe takes the ranks in turn. A
        word of each rank says how many stripes it has added to in all its rounds; who died is passed over.
        """
        words, count, spent = self.words, len(self.states), 0.0
        for s, state in enumerate(self.states):
            reached = mine * count + s + 1

            def lower_ranks_are_done(reached: int = reached) -> bool:
                return all(words[ADDED + rank] >= reached for rank in self.control.joined() if rank < self.rank)

            if d is not None and s in self.segment.stripes[fragment]:
                self._wait(lower_ranks_are_done, deadline, lambda: f"round {mine} is not complete after {deadline:g} s")
                start = time.perf_counter()
                state.add_to_round(d[self._place(s, fragment)], scale)
                spent += time.perf_counter() - start
            words[ADDED + self.rank] = reached
        return spent

    def _meet(self, mine: int, deadline: float) -> None:
        """Wait until round `mine` is over; whoever sees that all living have arrived ends it."""
        words = self.words

        def over() -> bool:
            if words[ROUND] != mine:
                return True
            with self.control.changing():
                if words[ROUND] == mine and self.control.all_arrived():
                    self._absorb_sum()
                    words[AGREED + (mine + 1) % 2] = 0
                    words[ROUND] += 1
            return words[ROUND] != mine

        self._wait(over, deadline, lambda: f"round {mine} is not complete after {deadline:g} s")

    def _absorb_sum(self) -> None:
        """Update the center with the round's sum, stripe by stripe, beside no snapshot.

        Whoever is killed in here leaves a word that says at which stripe, and the clock at which it found it: if that
        has ticked, the stripe is done. It gives up its part of the sum before it changes. So the next worker goes on
        from there, and no stripe is updated twice.
        """
        words, fragments = self.words, range(len(self.segment.fragments))
        brought = [f for f in fragments if words[APPLIED + f]]
        clock, first = divmod(words[ABSORBED], STRIPES_MOST)
        if brought:
            with self.snapshot_lock.closed():
                for s in (s for f in brought for s in self.segment.stripes[f] if s >= first):
                    found = self.states[s].version + 1  # never 0, which says that nobody has begun
                    if s == first and clock not in (0, found):
                        continue
                    words[ABSORBED] = found * STRIPES_MOST + s
                    self.states[s].end_round()
                for f in brought:
                    words[APPLIED + f] = 0
        words[ABSORBED] = 0

    # waiting ---------------------------------------------------------------------------------------------------

    def _wait(self, done: Callable[[], bool], deadline: float, why: Callable[[], str]) -> None:
        """Ask again and again until `done`; meanwhile see who has died. Raises after `deadline` seconds."""
        end = time.monotonic() + deadline
        while not done():
            self._mark_the_dead()
            if time.monotonic() > end:
                self._too_late(why())
            time.sleep(POLL)

    def _mark_the_dead(self) -> None:
        """While waiting for others, look now and then whether they live: a dead worker's life lock is open."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_SECONDS
        self.control.mark_killed(self.rank)

    def _too_late(self, why: str) -> NoReturn:
        raise TimeoutError(f"worker {self.rank}: {why}; give attach a longer deadline")
