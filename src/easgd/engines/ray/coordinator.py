"""The run's desk: who is in the run, whose turn it is, what workers printed and recorded. One small actor.

Everything happens on one event loop, so nothing needs a lock. What it knows is plain data, of which the launcher keeps
a copy: a desk that was killed is restarted by Ray and given it back.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from easgd.engines.ray.membership import Membership

TURN_SECONDS = 1.0
ENROLL_SECONDS = 5.0
RETRY_SECONDS = 0.1


class Coordinator:
    """The actor."""

    def __init__(self) -> None:
        self.run: dict[str, Any] | None = None
        self.shards: list[Any] = []
        self.memberships: dict[str, Membership] = {}
        self.methods: dict[str, Any] = {}
        self.incarnations: dict[int, int] = {}  # rank -> incarnations started
        self.held: dict[int, int] = {}  # rank -> incarnation that holds it
        self.parcels: list[tuple[str, bytes]] = []
        self.stopping = False
        self._telling: set[asyncio.Future[None]] = set()  # a task that nobody holds may be collected
        self._changed = asyncio.Event()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait(self, end: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), max(0.001, end - time.monotonic()))

    async def _ready(self) -> None:
        """After a restart, nothing is answered before the launcher has brought the copy."""
        while self.run is None:
            await self._wait(time.monotonic() + TURN_SECONDS)

    # the launchers' side ---------------------------------------------------------------------------------------

    async def begin(self, run: dict[str, Any], shards: list[Any]) -> None:
        """The run and the shards that may carry its centers."""
        self.run, self.shards = run, shards
        self._notify()

    async def describe(self) -> dict[str, Any] | None:
        """What a late joiner must know; None before `begin`, or after a restart."""
        return self.run

    async def assign_rank(self, rank: int | None) -> tuple[int, int]:
        """Give a rank, the lowest free one if none is named, and the number of its new incarnation."""
        await self._ready()
        if rank is None:
            rank = next(k for k in range(len(self.held) + 1) if k not in self.held)
        incarnation = self.incarnations.get(rank, 0)
        self.incarnations[rank] = incarnation + 1
        self.held[rank] = incarnation
        return rank, incarnation

    async def mark_dead(self, rank: int, incarnation: int, keep: bool = False) -> None:
        """A worker has ended, however; its rank is free again unless it is kept for a restart."""
        await self._ready()
        if not keep and self.held.get(rank) == incarnation:
            del self.held[rank]
        for center, membership in self.memberships.items():
            if membership.mark_dead(rank, incarnation):
                await self._enroll(center)
        self._notify()

    async def stop(self) -> None:
        """Ask all workers to stop."""
        self.stopping = True

    async def drain(self) -> list[tuple[str, bytes]]:
        """What workers printed and recorded since the last time: (file, bytes)."""
        parcels, self.parcels = self.parcels, []
        return parcels

    async def dump(self) -> dict[str, Any] | None:
        """Everything worth keeping, as plain data; None if there is nothing yet."""
        if self.run is None:
            return None
        memberships = {center: membership.dump() for center, membership in self.memberships.items()}
        return {
            "run": self.run,
            "incarnations": self.incarnations,
            "held": self.held,
            "memberships": memberships,
            "stopping": self.stopping,
        }

    async def restore(self, data: dict[str, Any], shards: list[Any], methods: dict[str, Any]) -> None:
        """Go on from a copy."""
        self.run, self.shards, self.stopping = data["run"], shards, data["stopping"]
        self.incarnations, self.held, self.methods = data["incarnations"], data["held"], methods
        self.memberships = {center: Membership.load(membership) for center, membership in data["memberships"].items()}
        self._notify()

    async def method(self, center: str) -> Any:
        """The method of a center: its shards need it when they are made again."""
        return self.methods.get(center)

    # the workers' side -----------------------------------------------------------------------------------------

    async def beat(self, rank: int, incarnation: int, parcels: list[tuple[str, bytes]]) -> bool:
        """Take output and records; return whether the worker shall stop."""
        self.parcels += parcels
        return self.stopping or self.incarnations.get(rank, 0) > incarnation + 1

    async def open(self, center: str, rank: int, incarnation: int, header: dict[str, Any]) -> dict[str, Any]:
        """A worker brings its model: what it must fit, where the shards are, whether to bring the start value."""
        await self._ready()
        assert self.run is not None
        membership = self.memberships.setdefault(center, Membership(len(self.shards)))
        upload = membership.open(rank, incarnation, header)
        return {
            "header": membership.header,
            "bounds": membership.bounds,
            "shards": self.shards[: len(membership.bounds)],
            "upload": upload,
            "opened": membership.opened,
            "secret": self.run["secret"],
        }

    async def opened(self, center: str, method: Any) -> None:
        """The start value is at the shards."""
        await self._ready()
        self.memberships[center].opened, self.methods[center] = True, method
        self._notify()

    async def join(self, center: str, rank: int, incarnation: int) -> int:
        """A worker enters; the shards know it before it trains. Returns how many live; 0: it is taken for dead."""
        await self._ready()
        membership = self.memberships[center]
        if not membership.join(rank, incarnation):
            return 0
        await self._enroll(center)
        self._notify()
        return len(membership.members())

    async def gather(self, center: str, launched: int, seconds: float) -> tuple[int, int]:
        """Wait until all launched ranks have come; return how many have not, and how many live."""
        await self._ready()
        end = time.monotonic() + seconds
        while (missing := self.memberships[center].missing(launched)) and time.monotonic() < end:
            await self._wait(end)
        return missing, len(self.memberships[center].members())

    async def begin_training(self, center: str, elapsed: float) -> float:
        """The time of day at which training began; the first to ask decides."""
        await self._ready()
        membership = self.memberships[center]
        if membership.began is None:
            membership.began = time.time() - elapsed
        return membership.began

    async def leave(self, center: str, rank: int, incarnation: int) -> None:
        """A worker leaves politely."""
        await self._ready()
        if center in self.memberships and self.memberships[center].leave(rank, incarnation):
            await self._enroll(center)
        self._notify()

    async def same_gradient(self, center: str, rank: int, digest: int) -> list[int]:
        """Note the digest of a worker's first gradient; return the ranks that noted the same before."""
        await self._ready()
        digests = self.memberships[center].digests
        same = [other for other, its in digests.items() if other != rank and its == digest]
        digests[rank] = digest
        return same

    async def leave_behind(self, center: str, rest: bytes, aliases: dict[str, str]) -> None:
        """Keep the first worker's rest of the model, as the bytes of a safetensors file."""
        await self._ready()
        membership = self.memberships[center]
        if membership.rest is None:
            membership.rest, membership.aliases = rest, aliases

    async def wait_turn(self, center: str, rank: int) -> int:
        """Wait for a turn, a second at most; return whose it is."""
        await self._ready()
        membership, end = self.memberships[center], time.monotonic() + TURN_SECONDS
        while (holder := membership.holder()) != rank and time.monotonic() < end:
            await self._wait(end)
        return holder

    async def pass_turn(self, center: str, rank: int) -> None:
        """The next may act."""
        await self._ready()
        membership = self.memberships[center]
        if membership.holder() == rank:
            membership.turn += 1
        self._notify()

    async def _enroll(self, center: str) -> None:
        """Tell the shards who lives, and go on when they have heard it.

        Shards are threaded actors, and Ray keeps no order of calls to those: the serial number lets a shard ignore what
        comes late. A shard that does not answer, as one that is being restarted, is told again beside.
        """
        membership = self.memberships[center]
        membership.serial += 1
        serial, members, dead = membership.serial, membership.members(), dict(membership.dead)
        shards = self.shards[: len(membership.bounds)]
        told = [asyncio.ensure_future(self._tell(shard, center, serial, members, dead)) for shard in shards]
        self._telling.update(told)
        for task in told:
            task.add_done_callback(self._telling.discard)
        await asyncio.wait(told, timeout=ENROLL_SECONDS)

    async def _tell(self, shard: Any, center: str, serial: int, members: list[int], dead: dict[int, int]) -> None:
        """Tell one shard, again and again until it has heard it or there is something newer to tell."""
        while self.memberships[center].serial == serial:
            with contextlib.suppress(Exception):  # Ray's own errors have no common base here; all mean "not told"
                if await asyncio.wait_for(shard.enroll.remote(center, serial, members, dead), ENROLL_SECONDS):
                    return
            await asyncio.sleep(RETRY_SECONDS)
