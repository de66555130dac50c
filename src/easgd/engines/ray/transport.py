"""One message to the shards of a center that it meets, and their answers: nothing is lost or applied twice.

All parts of a message leave at once, and the shards answer at once. What fails is sent again, under the same number:
a shard that has applied it answers what it answered then. A shard that was restarted from a checkpoint says so by its
epoch; the worker writes that down and goes on from what the center has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from easgd.engines.ray.messages import Kind, LinkError, Reply, Request, ShardLink, Status
from easgd.errors import CenterLostError, UnreachableError
from easgd.runtime import time

PAUSE = 0.02
Open = Callable[[int], ShardLink]


@dataclass
class PendingRequest:
    """One exchange on its way: of which fragment, what was sent under which number, and to which shards."""

    kind: Kind
    fragment: int
    sequence: int
    scale: float
    message: Tensor | None
    payloads: dict[int, Tensor | None]
    """By shard."""
    codec: str | None = None
    in_full: set[int] = field(default_factory=set)
    """The shards whose part is in float32, whatever the codec."""

    def kind_for(self, k: int) -> Kind:
        """What shard k is asked: one that has no part of the message takes part in a synchronous round all the same."""
        return Kind.MEET if self.kind == Kind.TOGETHER and self.payloads[k] is None else self.kind


class Transport:
    """The links to all shards of one center."""

    def __init__(
        self,
        center: str,
        rank: int,
        incarnation: int,
        bounds: Sequence[tuple[int, int]],
        open_: Open,
        events: list[tuple[str, str]] | None = None,
    ) -> None:
        self.center, self.rank, self.incarnation, self.bounds, self._open = center, rank, incarnation, bounds, open_
        self.links: list[ShardLink | None] = [None] * len(bounds)
        self.events: list[tuple[str, str]] = [] if events is None else events
        self.living, self.bytes_sent, self.waited = 1, 0, 0.0
        self.pace = self.slowest = 0.0
        self.updates: dict[int, int] = {}
        """Of each fragment, how often it had been updated at its last answer."""
        self._epochs = [-1] * len(bounds)
        self._versions: dict[tuple[int, int], int] = {}

    def deliver(
        self, pending: PendingRequest, into: Mapping[int, Tensor], seconds: float
    ) -> dict[int, tuple[Reply, int]]:
        """Send a pending's parts at once and wait for all answers, sending again what fails; return them by shard."""
        replies: dict[int, tuple[Reply, int]] = {}
        end, failure = time.monotonic() + seconds, ""
        while missing := [k for k in pending.payloads if k not in replies]:
            sent = []
            for k in missing:
                start = time.monotonic()
                if self._sent(k, pending):
                    sent.append(k)
                    end += time.monotonic() - start  # a slow link takes its time, and has not failed
            for k in sent:
                link = self.links[k]
                assert link is not None
                try:
                    reply, size = link.receive(max(1.0, end - time.monotonic()), into[k])
                except LinkError as error:
                    failure = f"shard {k}: {error}"
                    self._drop(k)
                    continue
                payload = pending.payloads[k]
                self.bytes_sent += size + (0 if payload is None else payload.numel())
                if reply.status == Status.ZOMBIE:
                    raise CenterLostError(f"worker {self.rank}: a later incarnation has taken its place in the run")
                if reply.status in (Status.BLANK, Status.WAIT):
                    self.waited += reply.waited / len(sent)  # all shards wait for the same workers
                    failure = f"shard {k}: {Status(reply.status).name.lower()}"
                else:
                    replies[k] = (reply, size)
            if len(replies) < len(pending.payloads):
                if time.monotonic() > end:
                    raise UnreachableError(f"worker {self.rank}: no answer within {seconds:g} s ({failure})")
                time.sleep(PAUSE)
        self._note(pending.fragment, {k: reply for k, (reply, _) in sorted(replies.items())})
        return replies

    def _sent(self, k: int, pending: PendingRequest) -> bool:
        request = Request(
            self.center, self.rank, self.incarnation, pending.sequence, pending.kind_for(k), pending.scale,
            pending.fragment, self.pace, pending.codec, k in pending.in_full,
        )  # fmt: skip
        try:
            link = self.links[k]
            if link is None:
                link = self.links[k] = self._open(k)
            link.send(request, pending.payloads[k])
        except LinkError:
            self._drop(k)
            return False
        return True

    def _drop(self, k: int) -> None:
        link, self.links[k] = self.links[k], None
        if link is not None:
            link.close()

    def _note(self, fragment: int, replies: dict[int, Reply]) -> None:
        first = next(iter(replies.values()))
        self.living, self.updates[fragment] = first.living, first.version
        self.waited += max(reply.waited for reply in replies.values())
        self.slowest = max(reply.slowest for reply in replies.values())
        for k, reply in replies.items():
            if self._epochs[k] not in (-1, reply.epoch):
                back = f"version {self._versions.get((k, fragment), 0)} → {reply.version}"
                self.events.append(
                    ("rollback", f"shard {k} began again from a checkpoint: epoch {reply.epoch}, {back}")
                )
            self._epochs[k], self._versions[k, fragment] = reply.epoch, reply.version

    def close(self) -> None:
        """Close the connections to all shards."""
        for k in range(len(self.links)):
            self._drop(k)
