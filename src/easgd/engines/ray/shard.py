"""One contiguous stretch of the center, as a process of a cluster keeps it: x̃, the method's vectors, and a ledger.

The ledger has, for each worker and fragment, the sequence number of the last exchange and the answer to it: an exchange
is applied at most once, and a worker that asks again, because the answer was lost on the way, gets the same one.

A shard knows nothing of how messages travel. Any number of threads may call it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from easgd.center.fused_rules import warm
from easgd.center.history import History, Sender
from easgd.center.whole import Center
from easgd.compress import NAMES, Codec, Float32
from easgd.engines.ray.holds import Holds
from easgd.engines.ray.ledger import Ledger, LedgerEntry, Reached
from easgd.engines.ray.messages import Kind, Reply, Request, Status
from easgd.engines.ray.pipeline import LEAST, PipelinedExchange, Send, SendBytes
from easgd.engines.ray.sync_round import SyncRound
from easgd.engines.ray.updates import update, update_in_parts
from easgd.methods import Method, Slots
from easgd.runtime import threading, time

WAIT_SECONDS = 2.0
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
        self.most_bytes = max(Codec.named(name).bytes(self.size) for name in (None, *NAMES))
        """The longest message: every worker may compress in its own way."""
        self.epoch = 0
        self.ledger = Ledger()
        self.serial = -1
        self.members: set[int] = set()
        self.dead: dict[int, int] = {}
        self.joined_at: dict[int, list[int]] = {}
        self._changed = threading.Condition()
        self._round = SyncRound()
        self._holds = Holds()
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
            if message is not None and not request.in_full and entry.lacks_position(self.center.method.is_elastic):
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
            self._round.arrivals.pop(request.rank, None)
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
                update(request, entry, center, message)
            else:
                update_in_parts(request, entry, center, message, pipelined, self._stored)
        entry.sequence, entry.left = request.sequence, False
        self._changed.notify_all()

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
        if rank not in self._round.arrivals:
            self._round.add(request, entry, self.center.parts[f], message)
            self._end_round()
        start, end = time.perf_counter(), time.monotonic() + WAIT_SECONDS
        while entry.sequence < request.sequence and rank in self._round.arrivals:
            if not self._changed.wait(end - time.monotonic()):
                self._end_round()  # a snapshot that held it up may have lapsed
                if entry.sequence < request.sequence:
                    return self._reply(Status.WAIT, time.perf_counter() - start, f), None
        if entry.sequence < request.sequence:  # another incarnation has taken its place
            return self._reply(Status.WAIT, 0.0, f), None
        return self._stored(entry, time.perf_counter() - start, f)

    def _end_round(self) -> None:
        """Update the center once if all who live have come, and no snapshot holds the round up."""
        arrivals = self._round.arrivals
        if not arrivals or not self.members <= arrivals.keys():
            return
        # It may be a death that ends the round now, in the middle of a snapshot.
        if any(self._holds.until(rank, one.fragment, one.sequence) is not None for rank, one in arrivals.items()):
            return
        self._round.end(self.center.parts, self.ledger, self._sent_by)
        self._changed.notify_all()

    # snapshots -------------------------------------------------------------------------------------------------

    def hold(self, ticket: str = "") -> Reached:
        """Let no new exchange begin until `take` with the same ticket; return how far each worker has come."""
        with self._changed:
            self._holds.begin(ticket, {key: entry.sequence for key, entry in self.ledger.entries.items()})
            return self.ledger.reached(living=True)

    def take(self, target: Reached | None = None, seconds: float = 5.0, ticket: str = "") -> dict[str, Any]:
        """Return the state when every worker has come as far as `target`, and let exchanges go on.

        `whole` is False where a worker does not come, killed between its messages to two shards, and where the hold was
        over before this call.
        """
        with self._changed:
            whole = True
            if target is not None:
                self._holds.allow(ticket, {key: sequence for key, (_, sequence) in target.items()})
                self._end_round()
                self._changed.notify_all()
                whole = self._changed.wait_for(lambda: self._reached(target), seconds) and ticket in self._holds
            state = {**self.state(), "whole": whole}
            self.release(ticket)
            return state

    def release(self, ticket: str) -> None:
        """Give a hold up, and let exchanges go on that no other one is in the way of."""
        with self._changed:
            self._holds.end(ticket)
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
        while (until := self._holds.until(request.rank, request.fragment, request.sequence)) is not None:
            now = time.monotonic()
            if now > end:
                return False
            self._changed.wait(min(end, until) - now + 1e-3)
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
