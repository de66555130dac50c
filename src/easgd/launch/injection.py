"""Carries out a plan of faults on real workers: the launcher asks again and again what is due."""

from __future__ import annotations

import heapq
import signal
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from easgd.faults import Fault, in_order

if TYPE_CHECKING:
    from easgd.launch.backend import Backend

Due = tuple[float, int, Fault | None, int]
"""When, a number that breaks ties, the fault (None lets a paused worker go on), and the worker."""


class Injector:
    """A plan on its way.

    Args:
        plan: the faults; seconds count from the moment at which training began.
        backend: knows that moment, and kills and stops workers.
        start: starts a worker on a rank; a new one if None.
    """

    def __init__(self, plan: Sequence[Fault], backend: Backend, start: Callable[[int | None], object]) -> None:
        self.backend, self.start = backend, start
        # Workers see to their own pace (`training.training_worker`): a launcher could only stop them now and then.
        plan = [fault for fault in in_order(plan) if fault.what != "slow"]
        self._due: list[Due] = [(fault.time, k, fault, fault.worker) for k, fault in enumerate(plan)]
        self._number = len(plan)
        self.struck: set[int] = set()
        """The ranks that are dead by the plan: only the plan brings them back."""

    def joins_are_left(self) -> bool:
        """Whether a worker is still to come."""
        return any(fault is not None and fault.what == "join" for _, _, fault, _ in self._due)

    def inject(self, living: set[int]) -> list[tuple[int, str]]:
        """Let everything happen that is due; return (rank, what) of each."""
        began = self.backend.began()
        done: list[tuple[int, str]] = []
        while began is not None and self._due and self._due[0][0] <= time.monotonic() - began:
            moment, _, fault, rank = due = heapq.heappop(self._due)
            what = "continue" if fault is None else fault.what
            if what == "join":
                if rank in living and rank in self.struck:  # killed, and not yet seen to have ended
                    heapq.heappush(self._due, due)
                    break
                if rank in living:
                    continue
                self.start(rank if rank in self.struck else None)
                self.struck.discard(rank)
            elif rank not in living:
                continue
            elif what == "death":
                self.struck.add(rank)
                self.backend.signal(rank, signal.SIGKILL)
            elif what == "pause":
                assert fault is not None
                self.backend.signal(rank, signal.SIGSTOP)
                self._number += 1
                heapq.heappush(self._due, (moment + fault.amount, self._number, None, rank))
            else:
                self.backend.signal(rank, signal.SIGCONT)
            done.append((rank, what))
        return done
