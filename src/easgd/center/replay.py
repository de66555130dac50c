"""Replays what was written of one stretch of a center, up to the first entry that does not follow from those before.

Every entry has the digest of x̃ as it was found. So a replay that starts from the same vectors and applies the same
messages must meet the same digests, bit for bit, up to the last.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from easgd.center.digests import digest, terms
from easgd.center.history import Entry, Frame
from easgd.center.state import CenterState
from easgd.compress import Codec
from easgd.methods import Slots, registry

Key = tuple[int, int, int]
"""Of an exchange: worker, incarnation, sequence."""
Stretch = tuple[int, int]
Changes = dict[Key, dict[Stretch, int]]
"""Digests of what each exchange has added to each stretch."""


@dataclass(frozen=True)
class Difference:
    """What a replay found that the history does not explain."""

    source: str
    entry: Entry
    what: str

    def __str__(self) -> str:
        e = self.entry
        who = "" if e.rank < 0 else f", worker {e.rank} incarnation {e.incarnation} exchange {e.sequence}"
        where = f" elements {e.start} to {e.stop}, version {e.version}" if e.stop else f" {e.kind}"
        return f"{self.source}:{where}{who}: {self.what}"


@dataclass
class Report:
    """What a replay found.

    Attributes:
        differences: none for a history that explains itself; the first is the earliest of its stretch.
        notes: what is no fault but worth a line, as an exchange that a death has cut short.
        exchanges: how many messages were applied, over all stretches.
        rolls: how many changes of members there were.
        slots: the vectors at the end of the replay, by stretch.
    """

    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    exchanges: int = 0
    rolls: int = 0
    slots: dict[tuple[int, int], Slots] = field(default_factory=dict)

    @property
    def x(self) -> Tensor:
        """The center that the replay has reached."""
        return torch.cat([self.slots[stretch]["x"] for stretch in sorted(self.slots)])

    @property
    def measured(self) -> Tensor:
        """What is evaluated of it: z where there is one, else x̃."""
        found = [self.slots[stretch] for stretch in sorted(self.slots)]
        return torch.cat([slots.get("average", slots["x"]) for slots in found])

    def __str__(self) -> str:
        if self.differences:
            more = f" (and {len(self.differences) - 1} more)" if len(self.differences) > 1 else ""
            return f"{self.differences[0]}{more}"
        return f"{self.exchanges} changes of {len(self.slots)} stretches and {self.rolls} rolls replayed: all follow"


class MismatchError(Exception):
    """The entry under way does not follow."""


class StretchReplay:
    """One stretch of the center, replayed."""

    def __init__(
        self, stretch: tuple[int, int], report: Report, last: dict[tuple[int, int], int],
        changes: Changes,
    ) -> None:  # fmt: skip
        self.stretch, self.report, self.last, self.changes = stretch, report, last, changes
        self.state: CenterState | None = None
        self.pending: Frame | None = None  # a change that the next entry confirms
        self.adds: list[Frame] = []
        self.given_up = 0  # how many of them may be lost with whoever died when it had taken their sum
        self.unsure = False  # whether the vectors beside x̃ may be another part of a change than x̃ is
        self.digests: dict[int, int] = {}  # by version
        self.applied: dict[Key, int] = {}  # the version at which each was applied
        self.newest: dict[int, int] = {}  # incarnation by rank

    def run(self, found: list[Frame]) -> None:
        """Replay all entries, in order; the first difference ends it."""
        for frame in found:
            try:
                self._take(frame)
            except MismatchError as mismatch:
                self.report.differences.append(Difference(frame.source, frame.entry, str(mismatch)))
                break
        if self.state is not None:
            if self.pending is not None:
                self.report.notes.append(f"{_name(self.pending)} is the last entry; whether it was made is not known")
            self.report.slots[self.stretch] = self.state.slots

    def _take(self, frame: Frame) -> None:
        e = frame.entry
        if e.kind in ("open", "restore"):
            self._open(frame)
            return
        if self.state is None:
            raise MismatchError("there is no start value before it")
        self._settle(e)
        if digest(self.state.x, e.start) != e.digest:
            raise MismatchError(f"x̃ was found with another digest than the replay has ({e.digest:#x})")
        if e.kind == "average":
            self.state.begin_average()
        elif e.kind == "add":
            self.adds.append(frame)
        elif e.kind == "end":
            self._end(e)
        else:
            if e.kind == "round":
                self._check_sum(frame)
            self.pending = frame

    def _open(self, frame: Frame) -> None:
        """Begin, or go back to a saved state: that of a version that has been, with the same bits."""
        e, slots = frame.entry, frame.vectors()
        if e.kind == "open" and self.state is not None:
            raise MismatchError("it got a second start value")
        if digest(slots["x"], e.start) != e.digest:
            raise MismatchError("its start value has another digest than was written")
        if e.kind == "restore" and self.state is not None:
            if self.pending is not None and e.version == self.pending.entry.version + 1:
                self._settle(e)
            self.digests.setdefault(self.state.version, digest(self.state.x, e.start))
            if self.digests.get(e.version) != e.digest:
                raise MismatchError(f"it went back to version {e.version} with another value than that version had")
            self.applied = {key: version for key, version in self.applied.items() if version < e.version}
            self.digests = {version: found for version, found in self.digests.items() if version <= e.version}
        method = registry.get(e.method)(**e.settings)
        self.codec = Codec.named(e.codec or None)
        self.state = CenterState(method, slots, fused=e.fused)
        self.state.set_clock(e.clock)
        self.pending, self.adds, self.given_up = None, [], 0

    # what an entry says of the one before it ---------------------------------------------------------------------

    def _settle(self, e: Entry) -> None:
        """Make the pending change, if the entry's version says that it was made."""
        assert self.state is not None
        if self.pending is not None:
            if e.version == self.pending.entry.version + 1:
                self._change(self.pending)
                self.pending = None
            elif e.version == self.pending.entry.version:
                self._cut_short(self.pending, e)
                self.pending = None
        if e.version != self.state.version:
            raise MismatchError(f"the replay is at version {self.state.version}")

    def _change(self, frame: Frame) -> None:
        """Apply a message, or absorb a round's sum."""
        assert self.state is not None
        e, state = frame.entry, self.state
        self.digests[state.version] = e.digest
        vector = frame.vectors()["message"]
        if e.kind == "round":
            for add in self.adds:
                self._count(add.entry)
                d = add.vectors()["message"]
                self.changes.setdefault(key_of(add.entry), {})[self.stretch] = digest(d, e.start)
            self.adds, self.given_up = [], 0
            state.add_to_round(vector)
            state.end_round()
        else:
            self._count(e)
            d = state.apply(vector, e.scale, self._round if e.rounded else None)
            if state.method.is_elastic:
                self.changes.setdefault(key_of(e), {})[self.stretch] = digest(d, e.start)
        self.report.exchanges += 1

    def _round(self, d: Tensor) -> Tensor:
        return self.codec.decode(self.codec.encode(d), d.numel())

    def _count(self, e: Entry) -> None:
        """Check who sent it, and that this exchange has not been applied before."""
        assert self.state is not None
        if self.state.method.is_elastic and not 0 < e.scale <= 1:
            raise MismatchError(f"the change before it has the scale {e.scale:g}: α is in (0, 1]")
        if e.rank < 0:
            return
        if (before := self.applied.get(key_of(e))) is not None:
            what = f"worker {e.rank} incarnation {e.incarnation} exchange {e.sequence}"
            raise MismatchError(f"{what} was applied twice, at versions {before} and {e.version}")
        if self.newest.get(e.rank, -1) > e.incarnation:
            raise MismatchError(f"incarnation {e.incarnation} of worker {e.rank} was applied after a later one")
        self.newest[e.rank] = e.incarnation
        self.applied[key_of(e)] = e.version

    def _cut_short(self, frame: Frame, after: Entry) -> None:
        """A change that was begun and not counted: its worker died in it. x̃ then has it up to some element."""
        assert self.state is not None
        e, state = frame.entry, self.state
        if self.last.get((e.rank, e.incarnation), e.order) > e.order:
            raise MismatchError(f"{_name(frame)} was made at the same version, and its worker went on")
        old = state.x.clone()
        clock, slots = state.clock, {name: slot.clone() for name, slot in state.slots.items()}
        trial = CenterState(state.method, slots, fused=e.fused)
        trial.set_clock(clock)
        vector = frame.vectors()["message"]
        if e.kind == "round":
            trial.absorb_round([vector])
        else:
            trial.apply(vector, e.scale, self._round if e.rounded else None)
        elements = _prefix(old, trial.x, e.start, after.digest)
        if elements is None:
            raise MismatchError(f"{_name(frame)} was cut short, and no part of it explains the x̃ that was found")
        for name, slot in state.slots.items():
            slot[:elements] = trial.slots[name][:elements]
        self.unsure = True
        self.given_up = len(self.adds) if e.kind == "round" else self.given_up
        self.report.notes.append(f"{_name(frame)} was cut short after {elements} of {old.numel()} elements")

    def _check_sum(self, frame: Frame) -> None:
        """The sum of a round is that of the changes that were added to it, in the order of the ranks."""
        total, added = frame.vectors()["message"], [add.vectors()["message"] for add in self.adds]
        entries = [add.entry for add in self.adds]
        for e, later in itertools.combinations(entries, 2):
            # One that died in the round may have left its change before it; others do not wait for one that came late.
            died, came = self._last(e) < frame.entry.order, later.sequence == 0 and (later.incarnation or later.version)
            if e.rank > later.rank and not died and not came:
                ranks = [e.rank for e in entries]
                raise MismatchError(f"the round was summed in the order {ranks}, not in that of the ranks")
        if torch.equal(total, _sum(total, added)):
            return
        # A worker that died while it added is in each element or not; one that died while it absorbed has given up
        # the sum so far, or not.
        lost = [k for k, e in enumerate(entries) if self._last(e) <= e.order]
        explained = torch.zeros_like(total, dtype=torch.bool)
        for start in {0, self.given_up}:
            for without in itertools.chain.from_iterable(itertools.combinations(lost, n) for n in range(len(lost) + 1)):
                explained |= total == _sum(total, [d for k, d in enumerate(added) if k >= start and k not in without])
        if not bool(explained.all()):
            raise MismatchError(f"the sum of the round is not that of the {len(added)} changes that were added")
        self.report.notes += [f"{_name(self.adds[k])} died while it added to a round" for k in lost]
        if self.given_up:
            self.report.notes.append(f"{_name(frame)} has not all that was added: who absorbed it before has died")

    def _last(self, e: Entry) -> int:
        """When the worker of an entry wrote its last one."""
        return self.last.get((e.rank, e.incarnation), 0)

    def _end(self, e: Entry) -> None:
        assert self.state is not None
        for name, slot in self.state.slots.items():
            if digest(slot, e.start) != e.digests.get(name) and not (self.unsure and name != "x"):
                raise MismatchError(f"the vector {name!r} ended with another value than the replay")


def _prefix(old: Tensor, new: Tensor, start: int, wanted: int) -> int | None:
    """Up to which element a vector must be `new`, and `old` from there, to have the wanted digest; None if never."""
    with np.errstate(over="ignore"):
        before, after = terms(old, start), terms(new, start)
        gained = np.concatenate([np.zeros(1, np.uint64), np.cumsum(after - before, dtype=np.uint64)])
        found = np.flatnonzero(before.sum(dtype=np.uint64) + gained == np.uint64(wanted))
    return int(found[0]) if found.size else None


def _sum(like: Tensor, added: list[Tensor]) -> Tensor:
    total = torch.zeros_like(like)
    for d in added:
        total += d
    return total


def key_of(e: Entry) -> Key:
    return e.rank, e.incarnation, e.sequence


def _name(frame: Frame) -> str:
    e = frame.entry
    return f"{e.kind} of worker {e.rank} incarnation {e.incarnation} exchange {e.sequence} at version {e.version}"
