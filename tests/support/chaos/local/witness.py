"""What the simulation itself knows of the exchanges in shared memory, beside what the engine's words say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from chaos.outcome import Witness
from chaos.scheduler import Process, Scheduler
from easgd.engines.local.rounds import Rounds
from easgd.engines.local.snapshot_lock import SnapshotLock
from easgd.methods import Method

if TYPE_CHECKING:
    from chaos.local.memory import SharedState

Who = tuple[int, int]
"""(rank, incarnation)"""


@dataclass
class Doing:
    """An exchange that a process is in."""

    who: Who
    sequence: int
    stripes: range
    together: bool
    """in a synchronous round: what it brings is not in the center yet"""
    done: list[int] = field(default_factory=list)
    inside: bool = False

    @property
    def half_done(self) -> bool:
        return not self.together and (self.inside or 0 < len(self.done) < len(self.stripes))


class LocalWitness(Witness):
    """Follows every exchange from stripe to stripe, and adds up what each has changed."""

    def __init__(self, scheduler: Scheduler, size: int, method: Method) -> None:
        super().__init__(scheduler.note)
        kind = type(method)
        self.sums_are_added = kind.update_ is Method.update_ and kind.absorb_ is Method.absorb_
        """whether a round moves the center by its sum, and not along it"""
        self.scheduler, self.size = scheduler, size
        self.doing: dict[Process, Doing] = {}
        self.added: dict[Who | None, Tensor] = {}
        """what the exchanges of each worker, and those of all in rounds (None), have added to x̃"""
        self.summed: dict[Who, Tensor] = {}
        """what each worker has added to the sums of rounds"""
        self.absorbing: dict[int, Tensor] = {}
        """stripes whose sum somebody has taken and not added yet, and that sum"""
        self.lost = torch.zeros(size, dtype=torch.float64)
        """sums of those who were killed between the two: a sum is added once at most"""
        self.versions: dict[int, int] = {}
        self.open: set[int] = set()
        """stripes to whose sum somebody has added since it was absorbed last"""
        self.changes = self.snapshots = self.missed = 0

    # exchanges -------------------------------------------------------------------------------------------------

    def begin(self, who: Who, sequence: int, stripes: range, together: bool) -> None:
        """A worker begins an exchange with these stripes."""
        self.doing[self.scheduler.me.process] = Doing(who, sequence, stripes, together)

    def end(self, taken: bool) -> None:
        """Its exchange is over: it is in every stripe, or in none where it was refused."""
        doing = self.doing.pop(self.scheduler.me.process)
        wanted = sorted(doing.stripes) if taken else []
        if sorted(doing.done) != wanted:
            self.wrong(f"exchange {doing.sequence} of {_name(doing.who)} is in stripes {doing.done}, not {wanted}")
        self.applied += taken

    def inside(self, state: SharedState) -> None:
        """A process is about to write into a stripe."""
        if (doing := self._mine()) is not None:
            doing.inside = True
        self._clock(state)

    def changed(self, state: SharedState, part: slice, change: Tensor) -> None:
        """Elements of a stripe have changed."""
        self.changes += 1
        doing, at = self._mine(), state.at[0]
        who = None if doing is None or doing.together else doing.who
        total = self.added.setdefault(who, torch.zeros(self.size, dtype=torch.float64))
        total[at + part.start : at + part.stop] += change
        if not bool(state.x.isfinite().all()):
            self.wrong("the center is not finite")

    def done(self, state: SharedState) -> None:
        """A stripe has taken an exchange."""
        doing = self._mine()
        assert doing is not None
        doing.inside = False
        if state.stripe in doing.done:
            self.wrong(f"exchange {doing.sequence} of {_name(doing.who)} is in stripe {state.stripe} twice")
        doing.done.append(state.stripe)
        if state.version != state._version + 1:
            self.wrong(f"one exchange took the clock of a stripe from {state._version} to {state.version}")
        self._clock(state)

    # rounds ----------------------------------------------------------------------------------------------------

    def brought(self, state: SharedState, d: Tensor) -> None:
        """A worker has added to the sum of a round."""
        doing = self._mine()
        assert doing is not None
        doing.inside = False
        doing.done.append(state.stripe)
        self.open.add(state.stripe)
        a, b = state.at
        self.summed.setdefault(doing.who, torch.zeros(self.size, dtype=torch.float64))[a:b] += d

    def absorbs(self, state: SharedState) -> None:
        """Somebody is about to update a stripe with the sum of the present round."""
        if state.stripe not in self.open:
            self.wrong(f"a round ends twice in stripe {state.stripe}")
        assert state._total is not None
        if state.stripe in self.absorbing:
            self.died_with(state, self.absorbing[state.stripe])
        self.absorbing[state.stripe] = state._total.double()

    def absorbed(self, state: SharedState) -> None:
        """A stripe has the sum of the present round."""
        del self.absorbing[state.stripe]
        self.open.discard(state.stripe)
        if state.version != state._version + 1:
            self.wrong(f"one round took the clock of a stripe from {state._version} to {state.version}")
        self._clock(state)

    def died_with(self, state: SharedState, taken: Tensor) -> None:
        """Who took this sum was killed before it was done: of each element, the center has it, or it is lost."""
        if not self.sums_are_added:
            return
        outstanding = self.outstanding(state)
        if bool(((outstanding.abs() > 1e-4) & ((outstanding - taken).abs() > 1e-4)).any()):
            self.wrong(f"stripe {state.stripe}: a sum that a dead worker had taken is in the center more than once")
        self.lost[slice(*state.at)] += outstanding

    def outstanding(self, state: SharedState) -> Tensor:
        """What was brought to rounds and is neither in the center, nor in the sum, nor known to be lost."""
        assert state._total is not None
        none, stripe = torch.zeros(self.size, dtype=torch.float64), slice(*state.at)
        brought, added = sum(self.summed.values(), none), self.added.get(None, none)
        return (brought - added - self.lost)[stripe] - state._total.double()

    # snapshots -------------------------------------------------------------------------------------------------

    def whole(self) -> None:
        """Somebody begins to copy the center: no exchange of a living worker may be half in it."""
        self.snapshots += 1
        for process, doing in self.doing.items():
            if process.alive and doing.half_done and process is not self.scheduler.me.process:
                self.wrong(f"a snapshot has exchange {doing.sequence} of {_name(doing.who)} in stripes {doing.done}")

    def _mine(self) -> Doing | None:
        return self.doing.get(self.scheduler.me.process)

    def _clock(self, state: SharedState) -> None:
        version = state.version
        if version < self.versions.get(state.stripe, 0):
            self.wrong(f"the clock of stripe {state.stripe} went back to {version}")
        self.versions[state.stripe] = version


def _name(who: Who) -> str:
    return f"worker {who[0]}-{who[1]}"


class WitnessedLock(SnapshotLock):
    """A snapshot lock under which a copy takes its time, and nothing may change meanwhile."""

    witness: LocalWitness

    @contextmanager
    def closed(self, patience: float | None = None) -> Iterator[bool]:
        witness = self.witness
        with super().closed(patience) as alone:
            if not alone:
                witness.missed += 1
                yield False
                return
            if "absorbing" in witness.scheduler.me.process.data:  # a round ends, as alone as a snapshot
                yield True
                return
            witness.whole()
            before = witness.changes
            witness.scheduler.point()
            yield True
            if witness.changes != before:
                witness.wrong("the center has changed while a snapshot was taken")


class WitnessedRounds(Rounds):
    """Rounds that say who absorbs one."""

    def _absorb_sum(self) -> None:
        data = WitnessedLock.witness.scheduler.me.process.data
        data["absorbing"] = True
        super()._absorb_sum()
        del data["absorbing"]
