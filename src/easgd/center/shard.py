"""One contiguous stretch of the center, as a process of a cluster keeps it: x̃, the method's vectors, and a ledger.

The ledger has each worker's incarnation, the sequence number of its last exchange and the answer to it: an exchange is
applied at most once, and a worker that asks again, because the answer was lost on the way, gets the same one.

A shard knows nothing of how messages travel. Any number of threads may call it.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from easgd.center.apply import exchange_, warm
from easgd.center.memory import finite
from easgd.center.messages import Kind, Reply, Request, Status
from easgd.compress import Codec, Float32, Following
from easgd.methods import Method, Slots

WAIT_SECONDS = 2.0
HOLD_SECONDS = 20.0

Answer = tuple[Reply, Tensor | None]


@dataclass
class Entry:
    """What the ledger has of one worker."""

    incarnation: int
    sequence: int = -1
    status: Status = Status.DONE
    answer: Tensor | None = None
    squares: float = 0.0
    following: Following | None = None


class Shard:
    """A stretch of the center. Everything is under one lock: an exchange is atomic."""

    def __init__(self, method: Method, codec: str | None, slots: Slots, version: int = 0) -> None:
        self.method, self.codec = method, Codec.named(codec)
        self.slots: Slots = {name: vector.to(torch.float32).clone() for name, vector in slots.items()}
        self.size = self.slots["x"].numel()
        self.version, self.epoch = version, 0
        self.ledger: dict[int, Entry] = {}
        self.members: set[int] = set()
        self.dead: dict[int, int] = {}
        self._changed = threading.Condition()
        self._round: dict[int, tuple[int, Tensor | None]] = {}
        self._allowed: dict[int, int] | None = None  # while held: up to which sequence each worker may come in
        self._held_until = 0.0
        warm(method)

    # membership ------------------------------------------------------------------------------------------------

    def enroll(self, members: list[int], dead: dict[int, int]) -> None:
        """The ranks in the run now, and the last incarnation of each rank that is known to have ended."""
        with self._changed:
            # Who has left asks for nothing any more, and counts anew if it attaches again.
            for rank in self.members - set(members):
                self.ledger.pop(rank, None)
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

    def _entry(self, request: Request) -> Entry | None:
        entry = self.ledger.get(request.rank)
        if self.dead.get(request.rank, -1) >= request.incarnation:
            return None
        if entry is None or entry.incarnation < request.incarnation:
            self._round.pop(request.rank, None)
            entry = self.ledger[request.rank] = Entry(request.incarnation)
        return entry if entry.incarnation == request.incarnation else None

    def _again(self, entry: Entry, request: Request, waited: float) -> Answer:
        """It was applied already: the first answer again."""
        silent = request.kind == Kind.PUSH
        if request.sequence < entry.sequence or (entry.answer is None and entry.status < Status.REFUSED and not silent):
            return self._reply(Status.LOST, waited), None
        return self._stored(entry, waited)

    def _apply(self, request: Request, entry: Entry, message: Tensor | None) -> None:
        entry.status, entry.answer, entry.squares = Status.DONE, None, 0.0
        if request.kind == Kind.PULL:
            self._answer_center(entry)
        else:
            assert message is not None
            self._update(request, entry, message)
        entry.sequence = request.sequence
        self._changed.notify_all()

    def _update(self, request: Request, entry: Entry, message: Tensor) -> None:
        method = self.method
        vector = self.codec.decode(message, self.size)
        if not finite(vector):
            entry.status = Status.REFUSED
            return
        if isinstance(self.codec, Float32):
            entry.squares = exchange_(method, self.slots, vector, request.scale, self.version)
            entry.answer = None if request.kind == Kind.PUSH else message
        elif method.answers_with == "difference":
            d = method.propose(self.slots, vector, request.scale)
            # What the worker will subtract is what the center adds: the rounded difference.
            entry.answer = self.codec.encode(d)
            d = self.codec.decode(entry.answer, self.size)
            method.update_(self.slots, d, self.version)
            entry.squares = float(torch.dot(d, d))
        else:
            exchange_(method, self.slots, vector, request.scale, self.version)
            if request.kind != Kind.PUSH:
                self._answer_center(entry)
        self.version += 1

    def _answer_center(self, entry: Entry) -> None:
        """x̃, or its change since this worker's last answer."""
        if isinstance(self.codec, Float32):
            entry.answer = self.slots["x"].clone().view(torch.uint8)
        elif entry.following is None:
            entry.status = Status.PLAIN
            entry.following = Following(self.codec, self.slots["x"])
            entry.answer = self.slots["x"].clone().view(torch.uint8)
        else:
            entry.answer = entry.following.encode(self.slots["x"])

    def _stored(self, entry: Entry, waited: float) -> Answer:
        return self._reply(entry.status, waited, entry.squares), entry.answer

    def _reply(self, status: Status, waited: float, squares: float = 0.0) -> Reply:
        return Reply(status, self.version, self.epoch, max(1, len(self.members)), squares, waited)

    # synchronous rounds ----------------------------------------------------------------------------------------

    def _meet(self, request: Request, entry: Entry, message: Tensor | None) -> Answer:
        """Equations 3 and 4: every d from the same x̃, one update with their sum when all who live have come."""
        if request.rank not in self._round:
            d = None
            if message is not None:
                vector = self.codec.decode(message, self.size)
                if finite(vector):
                    d = self.method.propose(self.slots, vector, request.scale)
                    if self.method.answers_with == "difference":
                        d = self.codec.decode(self.codec.encode(d), self.size)  # as in `_update`
            entry.status = Status.REFUSED if message is not None and d is None else Status.DONE
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
        differences = [d for _, d in arrived.values() if d is not None]
        if differences:
            # In the order of the ranks: a floating-point sum depends on it, and two runs must not differ.
            total = differences[0].clone()
            for d in differences[1:]:
                total += d
            self.method.update_(self.slots, total, self.version)
            self.version += 1
        for rank, (sequence, own) in arrived.items():
            entry = self.ledger[rank]
            entry.sequence, entry.answer, entry.squares = sequence, None, 0.0
            if entry.status == Status.REFUSED:
                continue
            if own is not None and self.method.answers_with == "difference":
                entry.answer, entry.squares = self.codec.encode(own), float(torch.dot(own, own))
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
            return {rank: (entry.incarnation, entry.sequence) for rank, entry in self.ledger.items()}

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
                "slots": {name: vector.clone() for name, vector in self.slots.items()},
                "version": self.version,
                "epoch": self.epoch,
                "ledger": {rank: (entry.incarnation, entry.sequence) for rank, entry in self.ledger.items()},
            }

    def load(self, state: dict[str, Any]) -> None:
        """Take back a state, as a new epoch; answers given after it are gone."""
        with self._changed:
            for name, vector in self.slots.items():
                vector.copy_(state["slots"][name])
            self.version, self.epoch = state["version"], state["epoch"] + 1
            self.ledger = {rank: Entry(inc, sequence) for rank, (inc, sequence) in state["ledger"].items()}
