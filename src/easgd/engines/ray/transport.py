"""One message to all shards of a center, and their answers: nothing is lost and nothing is applied twice.

All parts of a message leave at once, and the shards answer at once. What fails is sent again, under the same number:
a shard that has applied it answers what it answered then. A shard that was restarted from a checkpoint says so by its
epoch; the worker writes that down and goes on from what the center has.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from easgd.engines.ray.messages import Kind, LinkError, Reply, Request, ShardLink, Status
from easgd.errors import CenterLostError, UnreachableError

PAUSE = 0.02
Open = Callable[[int], ShardLink]


@dataclass
class PendingRequest:
    """One exchange on its way: what was sent, under which number, and what has come back."""

    kind: Kind
    sequence: int
    scale: float
    message: Tensor | None
    payloads: list[Tensor | None]


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
        self.living, self.version, self.bytes_sent, self.waited = 1, 0, 0, 0.0
        self._epochs = [-1] * len(bounds)
        self._versions = [0] * len(bounds)

    def deliver(self, pending: PendingRequest, into: Sequence[Tensor], seconds: float) -> list[tuple[Reply, int]]:
        """Send a pending's parts at once and wait for all answers, sending again what fails."""
        replies: list[tuple[Reply, int] | None] = [None] * len(self.links)
        end, failure = time.monotonic() + seconds, ""
        while missing := [k for k, reply in enumerate(replies) if reply is None]:
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
                    failure = f"shard {k}: {Status(reply.status).name.lower()}"
                else:
                    replies[k] = (reply, size)
            if None in replies:
                if time.monotonic() > end:
                    raise UnreachableError(f"worker {self.rank}: no answer within {seconds:g} s ({failure})")
                time.sleep(PAUSE)
        done = [reply for reply in replies if reply is not None]
        self._note([reply for reply, _ in done])
        return done

    def _sent(self, k: int, pending: PendingRequest) -> bool:
        request = Request(
            self.center, self.rank, self.incarnation, pending.sequence, pending.kind, pending.scale
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

    def _note(self, replies: list[Reply]) -> None:
        self.living, self.version = replies[0].living, replies[0].version
        self.waited += max(reply.waited for reply in replies)
        for k, reply in enumerate(replies):
            if self._epochs[k] not in (-1, reply.epoch):
                back = f"version {self._versions[k]} → {reply.version}"
                self.events.append(
                    ("rollback", f"shard {k} began again from a checkpoint: epoch {reply.epoch}, {back}")
                )
            self._epochs[k], self._versions[k] = reply.epoch, reply.version

    def close(self) -> None:
        """Close the connections to all shards."""
        for k in range(len(self.links)):
            self._drop(k)
