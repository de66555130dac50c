"""The history of a center in shared memory: each worker writes a file of its own, the launcher the end.

<out>/history/<run id>/<center>/open.history             the start value
                                worker-<rank>-<incarnation>.history
                                rolls.jsonl              who was in the run (`control.py`)
                                end.history              the last value, when all workers have ended

The monotonic clock of the machine orders what different processes wrote of one stripe: each did so under its lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from easgd.center.history import SUFFIX, History, Journal, Sender
from easgd.center.state import CenterState
from easgd.engines.local.segment import Segment
from easgd.methods import EASGD, Method
from easgd.runtime import time


def folder_for(history: Path, center: str) -> Path:
    """Make the folder of one center's history."""
    (folder := history / center).mkdir(parents=True, exist_ok=True)
    return folder


class Recording:
    """One worker's file, and the name of its present exchange."""

    def __init__(self, segment: Segment, states: Sequence[CenterState], rank: int, incarnation: int) -> None:
        self.rank, self.incarnation, self._sequence = rank, incarnation, -1
        self.history = journals(segment, states, f"worker-{rank}-{incarnation}{SUFFIX}")

    def begin(self) -> None:
        """Another exchange of this worker begins."""
        self._sequence += 1
        self.history.sender = Sender(self.rank, self.incarnation, self._sequence)


def journals(segment: Segment, states: Sequence[CenterState], name: str) -> History:
    """Open a file of the center's history, and let the stripes write into it."""
    history = History(Path(segment.header["history"], name), time.monotonic_ns)
    for state, (a, b) in zip(states, segment.bounds, strict=True):
        state.journal = Journal(history, a, b)
    return history


def begin(segment: Segment, method: Method) -> None:
    """Write down the start value, where changes are, before anybody can enter; every worker calls it, one does it.

    The one that has laid out the center may have been killed before it came to this, or in the middle of it.
    """
    if "history" not in segment.header or (whole := Path(segment.header["history"], f"open{SUFFIX}")).exists():
        return
    (part := whole.with_suffix(".part")).unlink(missing_ok=True)
    states = segment.states(method)
    history = journals(segment, states, part.name)
    for state in states:
        assert state.journal is not None
        state.journal.opened(state)
    history.close()
    part.rename(whole)


def end(folder: Path) -> None:
    """Write down the last value of a center whose workers have ended, where its changes were written down."""
    segment = Segment(folder)
    if "history" not in segment.header or not Path(segment.header["history"], f"open{SUFFIX}").exists():
        return  # it was not asked for, or nobody lived long enough to change anything
    states = segment.states(EASGD())  # any method will do: nothing is applied
    history = journals(segment, states, f"end{SUFFIX}")
    for state in states:
        assert state.journal is not None
        state.journal.ended(state)
    history.close()
