"""One contiguous stretch of the center, as a process of a cluster keeps it: x̃, the method's vectors, and a ledger.

The ledger has each worker's incarnation, the sequence number of its last exchange and the answer to it: an exchange is
applied at most once, and a worker that asks again, because the answer was lost on the way, gets the same one.

A shard knows nothing of how messages travel. Any number of threads may call it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from easgd.center.fused_rules import warm
from easgd.center.guard import Guard
from easgd.center.state import CenterState
from easgd.compress import Codec, DeltaCodec, Float32
from easgd.engines.ray.messages import Kind, Reply, Request, Status
from easgd.methods import Method, Slots

WAIT_SECONDS = 2.0
HOLD_SECONDS = 20.0

Answer = tuple[Reply, Tensor | None]


@dataclass
class LedgerEntry:
    """What the ledger has of one worker."""

    incarnation: int
    sequence: int = -1
    status: Status = Status.DONE
    answer: Tensor | None = None
    update_sqnorm: float = 0.0
    delta: DeltaCodec | None = None
    seen: int = 0
    """The shard's clock when this worker saw it last."""
    left: bool = False
    """Whether the worker is gone, so that no snapshot waits for it."""
    bound: float = 0.0


class Shard:
    """A stretch of the center. Everything is under one lock: an exchange is atomic."""

    def __init__(
        self, method: Method, codec: str | None, slots: Slots, version: int = 0, averaged_from: int = 0,
        guard: float = 0.0,
    ) -> None:  # fmt: skip
        self.codec = Codec.named(codec)
        vectors = {name: vector.to(torch.float32).clone() for name, vector in slots.items()}
        self.center = CenterState(method, vectors, clock=[version, averaged_from])
        self.guard = self.center.guard = Guard(0.0 if method.sequential else guard)
        self.size = self.center.x.numel()
        self.epoch = 0
        self.ledger: dict[int, LedgerEntry] = {}
        self.serial = -1
        self.members: set[int] = set()
        self.dead: dict[int, int] = {}
        self.joined_at: dict[int, int] = {}
        self._changed = threading.Condition()
        self._round: dict[int, tuple[int, Tensor | None]] = {}
        self._allowed: dict[int, int] | None = None  # while held: up to which sequence each worker may come in
        self._held_until = 0.0
        warm(method)

    @property
    def version(self) -> int:
        """The clock of this shard."""
        return self.center.version

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
                if (entry := self.ledger.get(rank)) is not None:
                    entry.answer, entry.delta, entry.left = None, None, True
            self.joined_at = {rank: self.joined_at.get(rank, self.version) for rank in members}
            for rank in dead.keys() - self.dead.keys():
                self.guard.forget(rank)
            self.members, self.dead = set(members), dict(dead)
            self._end_round()
            self._changed.notify_all()

    # exchanging ------------------------------------------------------------------------------------------------

    def exchange(self, request: Request, message: Tensor | None) -> Answer:
        """Serve one request. The message's memory may be used for the answer."""
        start = time.perf_counter()
        with self._changed:
            waited = time.perf_counter() - start
            entry = self._entry(request)
            if entry is None:
                return self._reply(Status.ZOMBIE, waited), None
            if request.sequence <= entry.sequence:
                return self._again(entry, request, waited)
            if not self._enter(request):
                return self._reply(Status.WAIT, waited), None
            if request.kind in (Kind.TOGETHER, Kind.MEET):
                return self._meet(request, entry, message)
            self._apply(request, entry, message)
            return self._stored(entry, waited)

    def _entry(self, request: Request) -> LedgerEntry | None:
        entry = self.ledger.get(request.rank)
        if self.dead.get(request.rank, -1) >= request.incarnation:
            return None
        if entry is None or entry.incarnation < request.incarnation:
            self._round.pop(request.rank, None)
            seen = self.joined_at.get(request.rank, self.version)
            entry = self.ledger[request.rank] = LedgerEntry(request.incarnation, seen=seen)
            self.guard.forget(request.rank)
        return entry if entry.incarnation == request.incarnation else None

    def _again(self, entry: LedgerEntry, request: Request, waited: float) -> Answer:
        """It was applied already: the first answer again."""
        silent = request.kind == Kind.PUSH
        if request.sequence < entry.sequence or (entry.answer is None and entry.status < Status.REFUSED and not silent):
            return self._reply(Status.LOST, waited), None
        return self._stored(entry, waited)

    def _apply(self, request: Request, entry: LedgerEntry, message: Tensor | None) -> None:
        entry.status, entry.answer, entry.update_sqnorm = Status.DONE, None, 0.0
        if request.kind == Kind.PULL:
            self._answer_center(entry)
        elif request.kind == Kind.BEGIN_AVERAGE:
            self.center.begin_average()
        else:
            assert message is not None
            self._update(request, entry, message)
        entry.sequence, entry.left = request.sequence, False
        self._changed.notify_all()

    def _update(self, request: Request, entry: LedgerEntry, message: Tensor) -> None:
        """Apply one message and keep its answer, as bytes, for a worker that asks again."""
        plain, wanted = isinstance(self.codec, Float32), request.kind != Kind.PUSH
        vector = self.codec.decode(message, self.size)
        rounded = None if plain or not self._elastic else self._rounding(entry)
        scale = request.scale * self.center.method.weight(self.version - entry.seen)
        answer = self.center.exchange(vector, scale, rounded, request.rank)
        entry.seen = self.version
        if answer is None:
            self._refuse(entry)
            return
        entry.update_sqnorm = self.center.update_sqnorm or 0.0
        if not wanted:
            entry.answer = None
        elif plain:
            entry.answer = answer.view(torch.uint8)
        elif not self._elastic:
            self._answer_center(entry)

    def _refuse(self, entry: LedgerEntry) -> None:
        why = self.center.refusal
        entry.status, entry.update_sqnorm, entry.bound = Status.REFUSED, why.distance**2, why.bound

    @property
    def _elastic(self) -> bool:
        return self.center.method.answers_with == "difference"

    def _rounding(self, entry: LedgerEntry) -> Callable[[Tensor], Tensor]:
        """What the worker will subtract is what the center adds: the rounded difference, whose bytes are the answer."""

        def through(d: Tensor) -> Tensor:
            entry.answer = self.codec.encode(d)
            return self.codec.decode(entry.answer, self.size)

        return through

    def _answer_center(self, entry: LedgerEntry) -> None:
        """Answer x̃, or its change since this worker's last answer."""
        x = self.center.x
        if isinstance(self.codec, Float32):
            entry.answer = x.clone().view(torch.uint8)
        elif entry.delta is None:
            entry.status = Status.PLAIN
            entry.delta = DeltaCodec(self.codec, x)
            entry.answer = x.clone().view(torch.uint8)
        else:
            entry.answer = entry.delta.encode(x)

    def _stored(self, entry: LedgerEntry, waited: float) -> Answer:
        bound = entry.bound if entry.status == Status.REFUSED else 0.0
        return self._reply(entry.status, waited, entry.update_sqnorm, bound), entry.answer

    def _reply(self, status: Status, waited: float, update_sqnorm: float = 0.0, bound: float = 0.0) -> Reply:
        return Reply(status, self.version, self.epoch, max(1, len(self.members)), update_sqnorm, waited, bound)

    # synchronous rounds ----------------------------------------------------------------------------------------

    def _meet(self, request: Request, entry: LedgerEntry, message: Tensor | None) -> Answer:
        """Equations 3 and 4: every d from the same x̃, one update with their sum when all who live have come."""
        if request.rank not in self._round:
            vector = None if message is None else self.codec.decode(message, self.size)
            d = self.center.propose(vector, request.scale, request.rank)
            if d is not None and self._elastic:
                d = self.codec.decode(self.codec.encode(d), self.size)  # as in `_rounding`
            entry.status = Status.DONE
            if message is not None and d is None:
                self._refuse(entry)
            # A copy: d may be the message itself, whose memory is used again.
            self._round[request.rank] = (request.sequence, None if d is None else d.clone())
            self._end_round()
        start, end = time.perf_counter(), time.monotonic() + WAIT_SECONDS
        while entry.sequence < request.sequence and request.rank in self._round:
            if not self._changed.wait(end - time.monotonic()):
                return self._reply(Status.WAIT, time.perf_counter() - start), None
        if entry.sequence < request.sequence:  # another incarnation has taken its place
            return self._reply(Status.WAIT, 0.0), None
        return self._stored(entry, time.perf_counter() - start)

    def _end_round(self) -> None:
        if not self._round or not self.members <= self._round.keys():
            return
        arrived = dict(sorted(self._round.items()))
        if differences := [d for _, d in arrived.values() if d is not None]:
            self.center.absorb_round(differences)  # in the order of the ranks
        for rank, (sequence, own) in arrived.items():
            entry = self.ledger[rank]
            entry.sequence, entry.answer = sequence, None
            if entry.status == Status.REFUSED:
                continue
            entry.update_sqnorm = 0.0
            if own is not None and self._elastic:
                entry.answer, entry.update_sqnorm = self.codec.encode(own), float(torch.dot(own, own))
            else:
                entry.status = Status.DONE
                self._answer_center(entry)
        self._round.clear()
        self._changed.notify_all()

    # snapshots -------------------------------------------------------------------------------------------------

    def hold(self) -> dict[int, tuple[int, int]]:
        """Let no new exchange begin; return how far each worker has come: (incarnation, sequence)."""
        with self._changed:
            self._allowed = {rank: entry.sequence for rank, entry in self.ledger.items()}
            self._held_until = time.monotonic() + HOLD_SECONDS
            return {rank: (entry.incarnation, entry.sequence) for rank, entry in self.ledger.items() if not entry.left}

    def take(self, target: dict[int, tuple[int, int]] | None = None, seconds: float = 5.0) -> dict[str, Any]:
        """Return the state when every worker has come as far as `target`, and let exchanges go on.

        A worker that was killed between its messages to two shards never comes: then `whole` is False.
        """
        with self._changed:
            whole = True
            if target is not None:
                self._allowed = {rank: sequence for rank, (_, sequence) in target.items()}
                self._changed.notify_all()
                whole = self._changed.wait_for(lambda: self._reached(target), seconds)
            state = {**self.state(), "whole": whole}
            self._allowed = None
            self._changed.notify_all()
            return state

    def _reached(self, target: dict[int, tuple[int, int]]) -> bool:
        mine = {rank: (entry.incarnation, entry.sequence) for rank, entry in self.ledger.items()}
        return all(mine.get(rank, (-1, -1)) >= at for rank, at in target.items() if at[1] >= 0)

    def _enter(self, request: Request) -> bool:
        """Wait while a snapshot holds this exchange up; False when that takes long."""
        end = time.monotonic() + WAIT_SECONDS
        while self._allowed is not None and request.sequence > self._allowed.get(request.rank, -1):
            now = time.monotonic()
            if now > self._held_until:
                self._allowed = None  # whoever held it is gone
            elif now > end:
                return False
            else:
                self._changed.wait(min(end, self._held_until) - now + 1e-3)
        # Its place may have been taken, or itself applied, while it waited.
        entry = self.ledger.get(request.rank)
        return entry is not None and entry.incarnation == request.incarnation and entry.sequence < request.sequence

    # saving ----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """A copy of the vectors, the clock, the epoch, and how far each worker has come."""
        with self._changed:
            return {
                **self.center.state_dict(),
                "slots": self.center.snapshot(),
                "epoch": self.epoch,
                "ledger": {rank: (entry.incarnation, entry.sequence) for rank, entry in self.ledger.items()},
            }

    def load(self, state: dict[str, Any]) -> None:
        """Take back a state, as a new epoch; answers given after it are gone."""
        with self._changed:
            self.center.load_state_dict(state)
            self.epoch = state["epoch"] + 1
            entries, now = state["ledger"].items(), self.version
            self.ledger = {rank: LedgerEntry(inc, sequence, seen=now) for rank, (inc, sequence) in entries}
