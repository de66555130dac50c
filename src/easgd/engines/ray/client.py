"""A worker's access to a center that lives in other processes, cut into shards: one round trip per exchange.

When a shard does not answer for a while the exchange is left open, training goes on, and the next exchange takes it up
first.
"""

from __future__ import annotations

import itertools
import math
from contextlib import suppress
from typing import Any

import torch
from safetensors.torch import save as pack_tensors
from torch import Tensor

from easgd.center.client import JoinRequest, Move
from easgd.center.guard import Refusal
from easgd.center.history import History, Sender
from easgd.center.layout import fragment_bounds, fragment_cuts
from easgd.center.state import accepts
from easgd.compress import Codec
from easgd.engines.ray import actor_link
from easgd.engines.ray.actor_link import CoordinatorProxy
from easgd.engines.ray.messages import Kind, Reply, Status
from easgd.engines.ray.packing import Packing
from easgd.engines.ray.transport import PendingRequest, Transport
from easgd.errors import CenterLostError, UnreachableError
from easgd.runtime import time

RETRY_SECONDS = 6.0
LEAVE_SECONDS = 2.0
SNAPSHOT_SECONDS = 300.0
"""A center of 100 MB over 10 Mbit/s takes 80 s; a shard that has died is known at once."""
PAUSE = 0.02
_sequences = itertools.count()
"""Of all exchanges of this process: a worker that leaves and attaches again does not count anew, since a message of the
first time may still be on its way."""


class RayCenterClient:
    """One worker's access to its center; a `CenterClient`. `connect` makes it."""

    hides_rounds = False
    counts_bytes = True

    def __init__(
        self, coordinator: CoordinatorProxy, shards: list[Any], transport: Transport, request: JoinRequest
    ) -> None:
        self.center, self.incarnation, self.shards = request.center, request.incarnation, shards
        self.coordinator, self.transport, self.method = coordinator, transport, request.method
        self.layout, self.packing = request.layout, Packing(Codec.named(request.compression), request.method)
        self.rank, self.launched = request.rank, request.launched
        self.wait_seconds = 0.0
        self.update_sqnorm: float | None = None
        self.refusal = Refusal()
        self.move: Move | None = None  # x̃ is in other processes
        self._cuts = [
            fragment_cuts(start, stop, transport.bounds)
            for start, stop in fragment_bounds(self.layout.size, self.method.fragments)
        ]
        """Of each fragment, which of its elements each shard has."""
        sizes = [cuts[-1].stop for cuts in self._cuts]
        # Two, in turn: a method may keep the last answer until the next has come whole.
        self._answers = [[torch.empty(n), torch.empty(n)] for n in sizes]
        rooms = [sum(self.packing.room(cut.stop - cut.start) for cut in cuts) for cuts in self._cuts]
        self._staging = None if self.packing.plain else torch.empty(max(rooms), dtype=torch.uint8)
        self._rejected = False
        self._unanswered: dict[int, PendingRequest] = {}
        self.history: History | None = None

    @property
    def living(self) -> int:
        """How many workers were in the run at the last answer."""
        return self.transport.living

    @property
    def pace(self) -> float:
        """What this worker brings to a run whose period sets itself."""
        return self.transport.pace

    @pace.setter
    def pace(self, value: float) -> None:
        self.transport.pace = value

    @property
    def slowest(self) -> float:
        """The largest pace at the last answer: of the last round, or of all workers."""
        return self.transport.slowest

    @property
    def version(self) -> int:
        """The updates of all fragments together, as of their last answers."""
        return sum(self.transport.updates.values())

    def updates(self, fragment: int) -> int:
        """How often a fragment had been updated at its last answer."""
        return self.transport.updates.get(fragment, 0)

    @property
    def bytes_sent(self) -> int:
        """Bytes of messages and answers since it was set to zero."""
        return self.transport.bytes_sent

    @bytes_sent.setter
    def bytes_sent(self, value: int) -> None:
        self.transport.bytes_sent = value

    @property
    def events(self) -> list[tuple[str, str]]:
        """What is worth a record: shards that began again from a checkpoint, links that fell back to Ray's calls."""
        return self.transport.events

    # membership ------------------------------------------------------------------------------------------------

    def join(self, incarnation: int) -> Tensor:
        """Enter the run; return the center's value to start from."""
        x = self.snapshot()["x"]
        self.enter()
        return x

    def enter(self) -> None:
        """Enter the run, without its value: a worker that shares a machine's center starts from that one."""
        living: int = self.coordinator.join(self.center, self.rank, self.incarnation)
        if not living:
            raise CenterLostError(f"worker {self.rank}: a later incarnation has taken its place in the run")
        self.transport.living = living

    def gather(self, seconds: float) -> int:
        """Wait until all launched workers have come; return how many have not."""
        missing, self.transport.living = self.coordinator.gather(
            self.center, self.launched, seconds, seconds=seconds + 10
        )
        return int(missing)

    def begin(self, elapsed: float) -> float:
        """Return when training began. Machines share the time of day, as well as it is kept, and no other clock."""
        began: float = self.coordinator.begin_training(self.center, elapsed)
        return time.monotonic() - (time.time() - began)

    def leave_behind(self, rest: dict[str, Tensor], aliases: dict[str, str]) -> None:
        """Keep the rest of the model at the run's coordinator."""
        tensors = {name: value.contiguous() for name, value in rest.items()}
        packed = pack_tensors(tensors) if tensors else b""
        self.coordinator.leave_behind(self.center, packed, aliases, seconds=10.0)

    def leave(self) -> None:
        """Leave the run; what was left open is brought to its end first, so that no shard has it without the others."""
        for fragment, pending in [*self._unanswered.items()]:
            if pending.kind in (Kind.EXCHANGE, Kind.PUSH):
                with suppress(UnreachableError, CenterLostError):
                    self._resolve(fragment, LEAVE_SECONDS)
        self.transport.close()
        self.coordinator.leave(self.center, self.rank, self.incarnation, seconds=10.0)

    # exchanging ------------------------------------------------------------------------------------------------

    def exchange(self, message: Tensor | None, scale: float, fragment: int = 0) -> Tensor | None:
        """Apply one message and answer it, on all shards that it meets at once. None: it was not finite."""
        late = self._resolve(fragment, RETRY_SECONDS)
        if late is not None and late[1] is not None and message is not None:
            if self.method.is_elastic:
                return late[1]  # of the exchange that could not be delivered then: the spring has been felt
            assert late[0].message is not None
            message = message - late[0].message  # the center has that part of the change already
        if message is not None and not self._accepts(message, scale):
            return None
        kind = Kind.PULL if message is None else Kind.EXCHANGE
        return self._send(kind, message, scale, RETRY_SECONDS, fragment)

    def push(self, message: Tensor, scale: float, fragment: int = 0) -> bool:
        """Apply one message that wants no answer."""
        self._resolve(fragment, RETRY_SECONDS)
        if not self._accepts(message, scale):
            return False
        self._rejected = False
        self._send(Kind.PUSH, message, scale, RETRY_SECONDS, fragment)
        return not self._rejected

    def _accepts(self, message: Tensor, scale: float) -> bool:
        """Whether the message is finite; how far it may be away is for the shards to say."""
        sound = accepts(message, scale)
        if not sound:
            self.refusal = Refusal()
            self.packing.forget_positions()
        return sound

    def same_gradient(self, digest: int) -> list[int]:
        """Report a digest of this worker's first gradient; return the ranks that reported the same before."""
        same: list[int] = self.coordinator.same_gradient(self.center, self.rank, digest)
        return same

    def begin_average(self) -> None:
        """Begin the time average anew on every shard."""
        for fragment in range(self.method.fragments):
            self._resolve(fragment, RETRY_SECONDS)
            self._send(Kind.BEGIN_AVERAGE, None, 1.0, RETRY_SECONDS, fragment)

    def exchange_together(
        self, message: Tensor | None, scale: float, deadline: float, fragment: int = 0
    ) -> Tensor | None:
        """One synchronous round: the shards answer when all who live have sent."""
        sound = message is None or self._accepts(message, scale)
        kind = Kind.TOGETHER if message is not None and sound else Kind.MEET
        try:
            answer = self._send(kind, message, scale, deadline, fragment)
        except UnreachableError as error:
            raise TimeoutError(f"{error}: the round is not complete; give attach a longer deadline") from error
        return answer if sound else None

    def _send(self, kind: Kind, message: Tensor | None, scale: float, seconds: float, fragment: int) -> Tensor | None:
        codec = self.packing.codec.name
        pending = PendingRequest(kind, fragment, next(_sequences), scale, message, {}, codec)
        for k, cut in enumerate(self._cuts[fragment]):
            if message is not None and kind != Kind.MEET and cut.start < cut.stop:
                pending.payloads[k], in_full = self.packing.pack(message[cut], (fragment, k))
                pending.in_full |= {k} if in_full else set()
            elif cut.start < cut.stop or kind in (Kind.TOGETHER, Kind.MEET):
                # A round is a meeting of all: workers that joined later may bring another fragment to it.
                pending.payloads[k] = None
        return self._deliver(pending, seconds)

    def _resolve(self, fragment: int, seconds: float) -> tuple[PendingRequest, Tensor | None] | None:
        """Bring what was left open to its end first."""
        if (pending := self._unanswered.get(fragment)) is None:
            return None
        answer = self._deliver(pending, seconds)
        self.events.append(("reached", f"the center answers again; exchange {pending.sequence} is made up for"))
        return pending, answer if pending.kind == Kind.EXCHANGE else None

    def _deliver(self, pending: PendingRequest, seconds: float) -> Tensor | None:
        f = pending.fragment
        self._unanswered[f] = pending
        answer = self._answers[f][0]
        cuts = {k: answer[self._cuts[f][k]] for k in pending.payloads}
        into = self._rooms(cuts)
        try:
            replies = self.transport.deliver(pending, into, seconds)
            while again := [k for k, (reply, _) in replies.items() if reply.status == Status.SEND_IN_FULL]:
                # Shards that were restarted. The others have applied their part, and answer it again.
                self._repack_in_full(pending, again)
                replies = self.transport.deliver(pending, into, seconds)
        except UnreachableError:
            # Copies are kept until the center answers again: the worker will use this memory for its next message.
            pending.message = None if pending.message is None else pending.message.clone()
            pending.payloads = {k: None if part is None else part.clone() for k, part in pending.payloads.items()}
            raise
        del self._unanswered[f]
        self.wait_seconds += self.transport.waited
        self.transport.waited = 0.0
        if refused := [reply for reply, _ in replies.values() if reply.status == Status.REFUSED]:
            return self._refused(refused, pending, len(replies), seconds)
        if pending.kind in (Kind.PUSH, Kind.BEGIN_AVERAGE):
            return None
        for k, (reply, size) in replies.items():
            difference = self.packing.elastic and pending.payloads[k] is not None
            self.packing.unpack((f, k), reply, into[k][:size], cuts[k], difference)
        elastic = pending.kind in (Kind.EXCHANGE, Kind.TOGETHER) and self.method.is_elastic
        self.update_sqnorm = sum(reply.update_sqnorm for reply, _ in replies.values()) if elastic else None
        lost = any(reply.status == Status.LOST for reply, _ in replies.values())
        if lost and not self.method.is_elastic:
            return self._send(Kind.PULL, None, 1.0, seconds, f)
        self._answers[f].reverse()
        if self.history is not None and elastic and not lost:
            self.history.sender = Sender(self.rank, self.incarnation, pending.sequence)
            self.history.answer(answer, fragment_bounds(self.layout.size, self.method.fragments)[f][0])
        return answer

    def _rooms(self, cuts: dict[int, Tensor]) -> dict[int, Tensor]:
        """Return the memory for each shard's answer: its place in the answer, unless that must be unpacked first."""
        if self._staging is None:
            return {k: cut.view(torch.uint8) for k, cut in cuts.items()}
        sizes = [self.packing.room(cut.numel()) for cut in cuts.values()]
        ends = list(itertools.accumulate(sizes))
        return {k: self._staging[end - size : end] for k, size, end in zip(cuts, sizes, ends, strict=True)}

    def _repack_in_full(self, pending: PendingRequest, shards: list[int]) -> None:
        assert pending.message is not None
        for k in shards:
            part = pending.message[self._cuts[pending.fragment][k]]
            pending.payloads[k] = self.packing.in_full(part, (pending.fragment, k))
            pending.in_full.add(k)

    def _refused(self, replies: list[Reply], pending: PendingRequest, shards: int, seconds: float) -> Tensor | None:
        """A message was refused, by all shards or by some: each judges its own stretch.

        Where only some have refused a change, the others have it: the worker must start from x̃, so as not to send it
        again.
        """
        self._rejected = True
        self.packing.forget_positions()
        self.refusal = Refusal(math.sqrt(replies[0].update_sqnorm), replies[0].bound)
        if len(replies) == shards or self.method.is_elastic or pending.kind == Kind.PUSH:
            return None
        self.events.append(("refused", f"{self.refusal}, by {len(replies)} of {shards} shards; it goes on from x̃"))
        return self._send(Kind.PULL, None, 1.0, seconds, pending.fragment)

    # reading ---------------------------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Tensor]:
        """Return a copy of all the center's vectors between two exchanges; repeated while a shard is restarted."""
        end = time.monotonic() + SNAPSHOT_SECONDS
        while True:
            try:
                return actor_link.joint(actor_link.snapshot(self.shards, self.center, SNAPSHOT_SECONDS))
            except UnreachableError:
                if time.monotonic() > end:
                    raise
                time.sleep(PAUSE)

    def state_dict(self) -> dict[str, Tensor]:
        """Return what is evaluated, z where there is one, else x̃, as named tensors."""
        slots = self.snapshot()
        return self.layout.split(slots.get("average", slots["x"]))

    # turns -----------------------------------------------------------------------------------------------------

    def wait_turn(self, deadline: float) -> None:
        """Round-robin: wait until it is this rank's turn."""
        end = time.monotonic() + deadline
        while (holder := self.coordinator.wait_turn(self.center, self.rank)) != self.rank:
            if time.monotonic() > end:
                waits = f"worker {self.rank}: no turn within {deadline:g} s, worker {holder} holds it"
                raise TimeoutError(f"{waits}; give attach a longer deadline")

    def pass_turn(self) -> None:
        """Round-robin: let the next worker act."""
        self.coordinator.pass_turn(self.center, self.rank)
