"""One contiguous stretch of the center, as a process of a cluster keeps it: x̃, the method's vectors, and a ledger.

The ledger has, for each worker and fragment, the sequence number of the last exchange and the answer to it: an exchange
is applied at most once, and a worker that asks again, because the answer was lost on the way, gets the same one.

A shard knows nothing of how messages travel. Any number of threads may call it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from easgd.center.fused_rules import warm
from easgd.center.history import History, Sender
from easgd.center.state import CenterState
from easgd.center.whole import Center
from easgd.compress import Codec, DeltaCodec, Float32
from easgd.engines.ray.ledger import Ledger, LedgerEntry, Reached
from easgd.engines.ray.messages import Kind, Reply, Request, Status
from easgd.methods import Method, Slots

WAIT_SECONDS = 2.0
HOLD_SECONDS = 20.0
MOST_RANKS = 1 << 16
"""The guard has a row for each rank up to the largest: a rank that is claimed must not take all memory."""

Answer = tuple[Reply, Tensor | None]


class Shard:
    """A stretch of the center. Everything is under one lock: an exchange is atomic."""

    def __init__(
        self, method: Method, codec: str | None, slots: Slots, cuts: Sequence[tuple[int, int]] | None = None,
        clocks: Sequence[Sequence[int]] = (), guard: float = 0.0,
    ) -> None:  # fmt: skip
        self.codec = Codec.named(codec)
        vectors = {name: vector.to(torch.float32).clone() for name, vector in slots.items()}
        self.center = Center(method, vectors, bounds=cuts, guard=guard)
        for part, clock in zip(self.center.parts, clocks, strict=False):
            part.set_clock(clock)
        self.size = self.center.x.numel()
        self.epoch = 0
        self.ledger = Ledger()
        self.serial = -1
        self.members: set[int] = set()
        self.dead: dict[int, int] = {}
        self.joined_at: dict[int, list[int]] = {}
        self._changed = threading.Condition()
        self._round: dict[int, tuple[int, int, Tensor | None]] = {}  # by rank: fragment, sequence, change
        self._allowed: dict[tuple[int, int], int] | None = None  # while held: up to which sequence each may come in
        self._held_until = 0.0
        self.history: History | None = None
        warm(method)

    @property
    def version(self) -> int:
        """The updates of all fragments together, on this shard."""
        return self.center.version

    def record(self, history: History, at: int, *, restored: bool = False) -> None:
        """Write down every change from now on; this shard begins at element `at` of the vector."""
        with self._changed:
            self.history = history
            began: Literal["open", "restore"] = "restore" if restored else "open"
            codec = "" if isinstance(self.codec, Float32) else self.codec.name
            self.center.record(history, at, epoch=self.epoch, codec=codec, began=began)

    def end_record(self) -> None:
        """Write down the last value."""
        with self._changed:
            self.center.end_record()
            self.history = None

    def _sent_by(self, rank: int, incarnation: int, sequence: int) -> None:
        """Let the history know whose exchange comes next."""
        if self.history is not None:
            self.history.sender = Sender(rank, incarnation, sequence, max(1, len(self.members)))

    # membership ------------------------------------------------------------------------------------------------

    def enroll(self, serial: int, members: list[int], dead: dict[int, int]) -> None:
        """Take note of the ranks in the run, and of the last incarnation of each rank that is known to have ended.

        Announcements may arrive in any order: one that is older than the newest so far is ignored.
        """
        with self._changed:
            if serial <= self.serial:
                return
            self.serial = serial
            # Who has left asks for nothing any more. How far it came stays: a network that was cut may still deliver
            # a message that was repeated since.
            for rank in self.members - set(members):
                self.ledger.leave(rank)
            versions = [part.version for part in self.center.parts]
            self.joined_at = {rank: self.joined_at.get(rank, versions) for rank in members}
            for rank in dead.keys() - self.dead.keys():
                self.center.forget(rank)
            self.members, self.dead = set(members), dict(dead)
            if self.history is not None:
                self.history.roll(serial, members, max(1, len(self.members)), dead)
            self._end_round()
            self._changed.notify_all()

    # exchanging ------------------------------------------------------------------------------------------------

    def exchange(self, request: Request, message: Tensor | None) -> Answer:
        """Serve one request. The message's memory may be used for the answer."""
        start = time.perf_counter()
        self._check(request, message)
        with self._changed:
            waited = time.perf_counter() - start
            entry = self._entry(request)
            if entry is None:
                return self._reply(Status.ZOMBIE, waited, request.fragment), None
            self.ledger.paces[request.rank] = request.pace
            if request.sequence <= entry.sequence:
                return self._again(entry, request, waited)
            if not self._enter(request):
                return self._reply(Status.WAIT, waited, request.fragment), None
            if request.kind in (Kind.TOGETHER, Kind.MEET):
                return self._meet(request, entry, message)
            self._apply(request, entry, message)
            return self._stored(entry, waited, request.fragment)

    def _check(self, request: Request, message: Tensor | None) -> None:
        """Refuse what no worker of this run would send, before it can change or cost anything."""
        kind = Kind(request.kind)
        if request.fragment >= len(self.center.parts):
            raise ValueError(f"fragment {request.fragment}: the run has {len(self.center.parts)}")
        if request.rank >= MOST_RANKS:
            raise ValueError(f"rank {request.rank}: a run has at most {MOST_RANKS}")
        if message is not None:
            self.codec.check(message, self.center.parts[request.fragment].x.numel())
        elif kind in (Kind.EXCHANGE, Kind.PUSH):
            raise ValueError(f"{kind.name.lower()}: there is no message")

    def _entry(self, request: Request) -> LedgerEntry | None:
        if self.dead.get(request.rank, -1) >= request.incarnation:
            return None
        if self.ledger.incarnations.get(request.rank, -1) < request.incarnation:
            self._round.pop(request.rank, None)
            self.center.forget(request.rank)
        f = request.fragment
        seen = self.joined_at.get(request.rank, [part.version for part in self.center.parts])[f]
        return self.ledger.entry(request.rank, request.incarnation, f, seen)

    def _again(self, entry: LedgerEntry, request: Request, waited: float) -> Answer:
        """It was applied already: the first answer again."""
        silent = request.kind == Kind.PUSH
        if request.sequence < entry.sequence or (entry.answer is None and entry.status < Status.REFUSED and not silent):
            return self._reply(Status.LOST, waited, request.fragment), None
        return self._stored(entry, waited, request.fragment)

    def _apply(self, request: Request, entry: LedgerEntry, message: Tensor | None) -> None:
        self._sent_by(request.rank, request.incarnation, request.sequence)
        entry.status, entry.answer, entry.update_sqnorm = Status.DONE, None, 0.0
        center = self.center.parts[request.fragment]
        if request.kind == Kind.PULL:
            self._answer_center(entry, center)
        elif request.kind == Kind.BEGIN_AVERAGE:
            center.begin_average()
        else:
            assert message is not None
            self._update(request, entry, center, message)
        entry.sequence, entry.left = request.sequence, False
        self._changed.notify_all()

    def _update(self, request: Request, entry: LedgerEntry, center: CenterState, message: Tensor) -> None:
        """Apply one message and keep its answer, as bytes, for a worker that asks again."""
        plain, wanted = isinstance(self.codec, Float32), request.kind != Kind.PUSH
        vector = self.codec.decode(message, center.x.numel())
        rounded = None if plain or not self._elastic else self._rounding(entry)
        scale = request.scale * center.method.weight(center.version - entry.seen)
        answer = center.exchange(vector, scale, rounded, request.rank)
        entry.seen = center.version
        if answer is None:
            _refuse(entry, center)
            return
        entry.update_sqnorm = center.update_sqnorm or 0.0
        if not wanted:
            entry.answer = None
        elif plain:
            entry.answer = answer.view(torch.uint8)
        elif not self._elastic:
            self._answer_center(entry, center)

    @property
    def _elastic(self) -> bool:
        return self.center.method.answers_with == "difference"

    def _rounding(self, entry: LedgerEntry) -> Callable[[Tensor], Tensor]:
        """What the worker will subtract is what the center adds: the rounded difference, whose bytes are the answer."""

        def through(d: Tensor) -> Tensor:
            entry.answer = self.codec.encode(d)
            return self.codec.decode(entry.answer, d.numel())

        return through

    def _answer_center(self, entry: LedgerEntry, center: CenterState) -> None:
        """Answer x̃, or its change since this worker's last answer."""
        x = center.x
        if isinstance(self.codec, Float32) or not x.numel():
            entry.answer = x.clone().view(torch.uint8)
        elif entry.delta is None:
            entry.status = Status.PLAIN
            entry.delta = DeltaCodec(self.codec, x)
            entry.answer = x.clone().view(torch.uint8)
        else:
            entry.answer = entry.delta.encode(x)

    def _stored(self, entry: LedgerEntry, waited: float, fragment: int) -> Answer:
        bound = entry.bound if entry.status == Status.REFUSED else 0.0
        slowest = entry.slowest or max(self.ledger.paces.values())
        return self._reply(entry.status, waited, fragment, entry.update_sqnorm, bound, slowest), entry.answer

    def _reply(
        self, status: Status, waited: float, fragment: int, update_sqnorm: float = 0.0, bound: float = 0.0,
        slowest: float = 0.0,
    ) -> Reply:  # fmt: skip
        version, living = self.center.parts[fragment].version, max(1, len(self.members))
        return Reply(status, version, self.epoch, living, update_sqnorm, waited, bound, slowest)

    # synchronous rounds ----------------------------------------------------------------------------------------

    def _meet(self, request: Request, entry: LedgerEntry, message: Tensor | None) -> Answer:
        """Equations 3 and 4: every d from the same x̃, one update with their sum when all who live have come."""
        rank, f = request.rank, request.fragment
        if rank not in self._round:
            center = self.center.parts[f]
            vector = None if message is None else self.codec.decode(message, center.x.numel())
            d = center.propose(vector, request.scale, rank)
            if d is not None and self._elastic:
                d = self.codec.decode(self.codec.encode(d), d.numel())  # as in `_rounding`
            entry.status = Status.DONE
            if message is not None and d is None:
                _refuse(entry, center)
            # A copy: d may be the message itself, whose memory is used again.
            self._round[rank] = (f, request.sequence, None if d is None else d.clone())
            self._end_round()
        start, end = time.perf_counter(), time.monotonic() + WAIT_SECONDS
        while entry.sequence < request.sequence and rank in self._round:
            if not self._changed.wait(end - time.monotonic()):
                return self._reply(Status.WAIT, time.perf_counter() - start, f), None
        if entry.sequence < request.sequence:  # another incarnation has taken its place
            return self._reply(Status.WAIT, 0.0, f), None
        return self._stored(entry, time.perf_counter() - start, f)

    def _end_round(self) -> None:
        if not self._round or not self.members <= self._round.keys():
            return
        arrived = dict(sorted(self._round.items()))
        for rank, (f, sequence, d) in arrived.items():  # in the order of the ranks
            if d is not None:
                self._sent_by(rank, self.ledger.entries[rank, f].incarnation, sequence)
                self.center.parts[f].add_to_round(d)
        for f in sorted({f for f, _, d in arrived.values() if d is not None}):
            self.center.parts[f].end_round()
        slowest = max(self.ledger.paces.get(rank, 0.0) for rank in arrived)
        for rank, (f, sequence, own) in arrived.items():
            entry = self.ledger.entries[rank, f]
            entry.slowest = slowest
            entry.sequence, entry.answer = sequence, None
            if entry.status == Status.REFUSED:
                continue
            entry.update_sqnorm = 0.0
            if own is not None and self._elastic:
                entry.answer, entry.update_sqnorm = self.codec.encode(own), float(torch.dot(own, own))
            else:
                entry.status = Status.DONE
                self._answer_center(entry, self.center.parts[f])
        self._round.clear()
        self._changed.notify_all()

    # snapshots -------------------------------------------------------------------------------------------------

    def hold(self) -> Reached:
        """Let no new exchange begin; return how far each worker has come."""
        with self._changed:
            self._allowed = {key: entry.sequence for key, entry in self.ledger.entries.items()}
            self._held_until = time.monotonic() + HOLD_SECONDS
            return self.ledger.reached(living=True)

    def take(self, target: Reached | None = None, seconds: float = 5.0) -> dict[str, Any]:
        """Return the state when every worker has come as far as `target`, and let exchanges go on.

        A worker that was killed between its messages to two shards never comes: then `whole` is False.
        """
        with self._changed:
            whole = True
            if target is not None:
                self._allowed = {key: sequence for key, (_, sequence) in target.items()}
                self._changed.notify_all()
                whole = self._changed.wait_for(lambda: self._reached(target), seconds)
            state = {**self.state(), "whole": whole}
            self._allowed = None
            self._changed.notify_all()
            return state

    def _reached(self, target: Reached) -> bool:
        mine, parts = self.ledger.reached(), self.center.parts
        # What it has no part of need not have come here.
        here = {key: at for key, at in target.items() if at[1] >= 0 and (key in mine or parts[key[1]].x.numel())}
        return all(mine.get(key, (-1, -1)) >= at for key, at in here.items())

    def _enter(self, request: Request) -> bool:
        """Wait while a snapshot holds this exchange up; False when that takes long."""
        end = time.monotonic() + WAIT_SECONDS
        while self._allowed is not None and request.sequence > self._allowed.get((request.rank, request.fragment), -1):
            now = time.monotonic()
            if now > self._held_until:
                self._allowed = None  # whoever held it is gone
            elif now > end:
                return False
            else:
                self._changed.wait(min(end, self._held_until) - now + 1e-3)
        # Its place may have been taken, or itself applied, while it waited.
        entry = self.ledger.entries.get((request.rank, request.fragment))
        return entry is not None and entry.incarnation == request.incarnation and entry.sequence < request.sequence

    # saving ----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """A copy of the vectors, the clock, the epoch, and how far each worker has come."""
        with self._changed:
            return {
                **self.center.state_dict(),
                "slots": self.center.snapshot(),
                "cuts": self.center.bounds,
                "epoch": self.epoch,
                "ledger": self.ledger.reached(),
            }

    def load(self, state: dict[str, Any]) -> None:
        """Take back a state, as a new epoch; answers given after it are gone."""
        with self._changed:
            self.center.load_state_dict(state)
            self.epoch = state["epoch"] + 1
            self.ledger = Ledger(state["ledger"], [part.version for part in self.center.parts])


def _refuse(entry: LedgerEntry, center: CenterState) -> None:
    """Note that the center refused a worker's message, and why."""
    why = center.refusal
    entry.status, entry.update_sqnorm, entry.bound = Status.REFUSED, why.distance**2, why.bound
