"""One contiguous stretch of the center, as a process of a cluster keeps it: x̃, the method's vectors, and a ledger.

The ledger has, for each worker and fragment, the sequence number of the last exchange and the answer to it: an exchange
is applied at most once, and a worker that asks again, because the answer was lost on the way, gets the same one.

A shard knows nothing of how messages travel. Any number of threads may call it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from easgd.center.fused_rules import warm
from easgd.center.history import History, Sender
from easgd.center.state import CenterState
from easgd.center.whole import Center
from easgd.compress import NAMES, Codec, Float32
from easgd.engines.ray.ledger import Ledger, LedgerEntry, Reached
from easgd.engines.ray.messages import Kind, Reply, Request, Status
from easgd.engines.ray.pipeline import LEAST, PipelinedExchange, Send, SendBytes, chunk_bytes
from easgd.methods import Method, Slots
from easgd.runtime import threading, time

WAIT_SECONDS = 2.0
HOLD_SECONDS = 20.0
MOST_RANKS = 1 << 16
"""The guard has a row for each rank up to the largest: a rank that is claimed must not take all memory."""

Answer = tuple[Reply, Tensor | None]


@dataclass
class Hold:
    """A snapshot under way: up to which sequence each worker and fragment may come in, and until when it waits."""

    allowed: dict[tuple[int, int], int]
    until: float


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
        self.most_bytes = max(Codec.named(name).bytes(self.size) for name in (None, *NAMES))
        """The longest message: every worker may compress in its own way."""
        self.epoch = 0
        self.ledger = Ledger()
        self.serial = -1
        self.members: set[int] = set()
        self.dead: dict[int, int] = {}
        self.joined_at: dict[int, list[int]] = {}
        self._changed = threading.Condition()
        # By rank: fragment, sequence, change, and its bytes where they are the answer.
        self._round: dict[int, tuple[int, int, Tensor | None, Tensor | None]] = {}
        self._holds: dict[str, Hold] = {}  # by ticket: several snapshots may be under way
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

    def pipeline(self, request: Request, size: int, send_head: Send, send_bytes: SendBytes) -> PipelinedExchange | None:
        """Return what `exchange` needs to overlap a message of this size with its arithmetic; None if it cannot."""
        if request.kind != Kind.EXCHANGE or size < LEAST or request.fragment >= len(self.center.parts):
            return None
        center, plain = self.center.parts[request.fragment], isinstance(self._codec(request), Float32)
        if not plain or size != 4 * center.x.numel() or not center.applies_in_parts:
            return None
        return PipelinedExchange(center, send_head, send_bytes)

    def exchange(
        self, request: Request, message: Tensor | None, pipelined: PipelinedExchange | None = None
    ) -> Answer:  # fmt: skip
        """Serve one request. The message's memory may be used for the answer, which `pipelined` sends meanwhile."""
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
            if message is not None and not request.in_full and entry.lacks_position(self._elastic):
                return self._reply(Status.SEND_IN_FULL, waited, request.fragment), None
            if pipelined is not None:
                pipelined.waited = waited
            if request.kind in (Kind.TOGETHER, Kind.MEET):
                return self._meet(request, entry, message)
            self._apply(request, entry, message, pipelined)
            return self._stored(entry, waited, request.fragment)

    def _check(self, request: Request, message: Tensor | None) -> None:
        """Refuse what no worker of this run would send: the loops trust the lengths of vectors."""
        kind = Kind(request.kind)
        if request.fragment >= len(self.center.parts):
            raise ValueError(f"fragment {request.fragment}: the run has {len(self.center.parts)}")
        if request.rank >= MOST_RANKS:
            raise ValueError(f"rank {request.rank}: a run has at most {MOST_RANKS}")
        if message is not None:
            codec = Float32() if request.in_full else self._codec(request)
            codec.check(message, self.center.parts[request.fragment].x.numel())
        elif kind in (Kind.EXCHANGE, Kind.PUSH):  # a round is a meeting of all, also on shards without the fragment
            raise ValueError(f"{kind.name.lower()}: there is no message")

    def _codec(self, request: Request) -> Codec:
        return self.codec if request.codec is None else Codec.named(request.codec)

    def _entry(self, request: Request) -> LedgerEntry | None:
        if self.dead.get(request.rank, -1) >= request.incarnation:
            return None
        if self.ledger.incarnations.get(request.rank, -1) < request.incarnation:
            self._round.pop(request.rank, None)
            self.center.forget(request.rank)
        f = request.fragment
        seen = self.joined_at.get(request.rank, [part.version for part in self.center.parts])[f]
        entry = self.ledger.entry(request.rank, request.incarnation, f, seen)
        if entry is not None:
            entry.use(self._codec(request))
        return entry

    def _again(self, entry: LedgerEntry, request: Request, waited: float) -> Answer:
        """It was applied already: the first answer again."""
        silent = request.kind == Kind.PUSH
        if request.sequence < entry.sequence or (entry.answer is None and entry.status < Status.REFUSED and not silent):
            return self._reply(Status.LOST, waited, request.fragment), None
        return self._stored(entry, waited, request.fragment)

    def _apply(
        self, request: Request, entry: LedgerEntry, message: Tensor | None, pipelined: PipelinedExchange | None
    ) -> None:  # fmt: skip
        self._sent_by(request.rank, request.incarnation, request.sequence)
        entry.status, entry.answer, entry.update_sqnorm = Status.DONE, None, 0.0
        center = self.center.parts[request.fragment]
        if request.kind == Kind.PULL:
            entry.answer_center(center.x)
        elif request.kind == Kind.BEGIN_AVERAGE:
            center.begin_average()
        else:
            assert message is not None
            if pipelined is None:
                self._update(request, entry, center, message)
            else:
                self._update_in_parts(request, entry, center, message, pipelined)
        entry.sequence, entry.left = request.sequence, False
        self._changed.notify_all()

    def _update(self, request: Request, entry: LedgerEntry, center: CenterState, message: Tensor) -> None:
        """Apply one message and keep its answer, as bytes, for a worker that asks again."""
        plain, wanted = isinstance(entry.codec, Float32), request.kind != Kind.PUSH
        vector = entry.unpack(message, center.x.numel(), self._elastic, request.in_full)
        rounded = None if plain or not self._elastic else entry.rounded
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
            entry.answer_center(center.x)
        elif entry.position is not None:
            entry.position.expect_(answer)

    def _update_in_parts(
        self, request: Request, entry: LedgerEntry, center: CenterState, message: Tensor, pipelined: PipelinedExchange
    ) -> None:  # fmt: skip
        """`_update` of a large message in float32, whose answer is sent while it is computed."""
        vector = entry.codec.decode(message, center.x.numel())
        scale = request.scale * center.method.weight(center.version - entry.seen)
        distance = pipelined.distance()
        distance = center.distance(vector) if distance is None else distance
        if center.accepts(vector, scale, request.rank, distance):
            # Σd² of the answer, which is on its way before the last d is known.
            entry.update_sqnorm = (scale * distance) ** 2 if self._elastic else 0.0
            entry.answer = message
            reply, _ = self._stored(entry, pipelined.waited, request.fragment)
            pipelined.begin(reply._replace(version=center.version + 1), message)
            part = chunk_bytes(message.numel()) // 4
            center.apply_parts_(vector.numpy(), scale, part, lambda end: pipelined.ready(4 * end))
        else:
            _refuse(entry, center)
        entry.seen = center.version

    @property
    def _elastic(self) -> bool:
        return self.center.method.answers_with == "difference"

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
            n, vector, packed = center.x.numel(), None, None
            if message is not None:
                vector = entry.unpack(message, n, self._elastic, request.in_full)
            d = center.propose(vector, request.scale, rank)
            d = None if d is None else d.clone()  # it may be the message itself, whose memory is used again
            if d is not None and self._elastic:
                packed = entry.codec.encode(d)
                d = entry.codec.decode(packed, n)  # as in `LedgerEntry.rounded`
                if entry.position is not None:
                    entry.position.expect_(d)
            entry.status = Status.DONE
            if message is not None and d is None:
                _refuse(entry, center)
            self._round[rank] = (f, request.sequence, d, packed)
            self._end_round()
        start, end = time.perf_counter(), time.monotonic() + WAIT_SECONDS
        while entry.sequence < request.sequence and rank in self._round:
            if not self._changed.wait(end - time.monotonic()):
                self._end_round()  # a snapshot that held it up may have lapsed
                if entry.sequence < request.sequence:
                    return self._reply(Status.WAIT, time.perf_counter() - start, f), None
        if entry.sequence < request.sequence:  # another incarnation has taken its place
            return self._reply(Status.WAIT, 0.0, f), None
        return self._stored(entry, time.perf_counter() - start, f)

    def _end_round(self) -> None:
        """Update the center once if all who live have come, and no snapshot holds the round up."""
        if not self._round or not self.members <= self._round.keys():
            return
        # It may be a death that ends the round now, in the middle of a snapshot.
        if any(self._held_until(rank, f, at) is not None for rank, (f, at, _, _) in self._round.items()):
            return
        arrived = dict(sorted(self._round.items()))
        for rank, (f, sequence, d, _) in arrived.items():  # in the order of the ranks
            if d is not None:
                self._sent_by(rank, self.ledger.entries[rank, f].incarnation, sequence)
                self.center.parts[f].add_to_round(d)
        for f in sorted({f for f, _, d, _ in arrived.values() if d is not None}):
            self.center.parts[f].end_round()
        slowest = max(self.ledger.paces.get(rank, 0.0) for rank in arrived)
        for rank, (f, sequence, own, packed) in arrived.items():
            entry = self.ledger.entries[rank, f]
            entry.slowest = slowest
            entry.sequence, entry.answer = sequence, None
            if entry.status == Status.REFUSED:
                continue
            entry.update_sqnorm = 0.0
            if own is not None and self._elastic:
                entry.answer, entry.update_sqnorm = packed, float(torch.dot(own, own))
            else:
                entry.status = Status.DONE
                entry.answer_center(self.center.parts[f].x)
        self._round.clear()
        self._changed.notify_all()

    # snapshots -------------------------------------------------------------------------------------------------

    def hold(self, ticket: str = "") -> Reached:
        """Let no new exchange begin until `take` with the same ticket; return how far each worker has come."""
        with self._changed:
            allowed = {key: entry.sequence for key, entry in self.ledger.entries.items()}
            self._holds[ticket] = Hold(allowed, time.monotonic() + HOLD_SECONDS)
            return self.ledger.reached(living=True)

    def take(self, target: Reached | None = None, seconds: float = 5.0, ticket: str = "") -> dict[str, Any]:
        """Return the state when every worker has come as far as `target`, and let exchanges go on.

        `whole` is False where a worker does not come, killed between its messages to two shards, and where the hold was
        over before this call.
        """
        with self._changed:
            whole = True
            if target is not None:
                if ticket in self._holds:
                    self._holds[ticket].allowed = {key: sequence for key, (_, sequence) in target.items()}
                self._end_round()
                self._changed.notify_all()
                whole = self._changed.wait_for(lambda: self._reached(target), seconds) and ticket in self._holds
            state = {**self.state(), "whole": whole}
            self.release(ticket)
            return state

    def release(self, ticket: str) -> None:
        """Give a hold up, and let exchanges go on that no other one is in the way of."""
        with self._changed:
            self._holds.pop(ticket, None)
            self._end_round()
            self._changed.notify_all()

    def _reached(self, target: Reached) -> bool:
        mine, parts = self.ledger.reached(), self.center.parts
        # What it has no part of need not have come here.
        here = {key: at for key, at in target.items() if at[1] >= 0 and (key in mine or parts[key[1]].x.numel())}
        return all(mine.get(key, (-1, -1)) >= at for key, at in here.items())

    def _enter(self, request: Request) -> bool:
        """Wait while a snapshot holds this exchange up; False when that takes long."""
        end = time.monotonic() + WAIT_SECONDS
        while self._holds and (until := self._held_until(request.rank, request.fragment, request.sequence)) is not None:
            now = time.monotonic()
            if now > end:
                return False
            self._changed.wait(min(end, until) - now + 1e-3)
        # Its place may have been taken, or itself applied, while it waited.
        entry = self.ledger.entries.get((request.rank, request.fragment))
        return entry is not None and entry.incarnation == request.incarnation and entry.sequence < request.sequence

    def _held_until(self, rank: int, fragment: int, sequence: int) -> float | None:
        """Until when a snapshot may hold this exchange up; None if none does."""
        now, key = time.monotonic(), (rank, fragment)
        for ticket in [ticket for ticket, hold in self._holds.items() if now > hold.until]:
            del self._holds[ticket]  # whoever held it is gone
        behind = [hold.until for hold in self._holds.values() if sequence > hold.allowed.get(key, -1)]
        return min(behind, default=None)

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
    entry.position = None  # it may not be finite; the worker sends its next one in full
