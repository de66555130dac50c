"""The run's coordinator: who is in the run, whose turn it is, what workers printed and recorded. One small actor.

Everything happens on one event loop, so nothing needs a lock. Every change of members is in the cluster's store before
the call that made it is answered. A coordinator that was killed is restarted by Ray and reads the store: no member that
was acknowledged is lost, and no dead worker comes back. Workers keep output until it is acknowledged; what waits here
for the launcher is lost with the coordinator.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from typing import Any, Protocol

from easgd.engines.ray.membership import Membership
from easgd.runtime import time

WAIT_SECONDS = 1.0
ENROLL_SECONDS = 5.0
RETRY_SECONDS = 0.1
SILENT_SECONDS = 3.0
"""A process that has sent no heartbeat for so long is called paused; they come every 0.15 s."""


class Store(Protocol):
    """Where the coordinator's state outlives its process."""

    def put(self, key: str, value: Any) -> None:
        """Return when the value is stored."""

    def get(self, key: str) -> Any:
        """Return the value; None if there is none."""


class Coordinator:
    """The actor.

    Args:
        store: where the state is kept.
        find_shard: returns the actor of shard k, for a coordinator that was restarted.
    """

    def __init__(self, store: Store, find_shard: Callable[[int], Any]) -> None:
        self.store = store
        self.run: dict[str, Any] | None = None
        self.shards: list[Any] = []
        self.memberships: dict[str, Membership] = {}
        self.methods: dict[str, bytes] = {}  # as they came: unpacking them would import torch
        self.incarnations: dict[int, int] = {}  # rank -> incarnations started
        self.held: dict[int, int] = {}  # rank -> incarnation that holds it
        self.output: list[tuple[str, bytes]] = []
        self.stopping = False
        self.stopped: set[tuple[int, int]] = set()  # workers that shall stop, of a launcher that ends
        self.heard: dict[tuple[int, int, str], float] = {}  # when each process of a worker sent its last heartbeat
        self.restarts = 0
        self._announced = True
        self._telling: set[asyncio.Task[None]] = set()  # a task that nobody holds may be collected
        self._changed = asyncio.Event()
        if (state := store.get("run")) is not None:
            self._restore(state, find_shard)

    def _restore(self, state: dict[str, Any], find_shard: Callable[[int], Any]) -> None:
        self.run, self.restarts = state["run"], state["restarts"] + 1
        self.shards = [find_shard(k) for k in range(state["shards"])]
        ranks = self.store.get("ranks")
        self.incarnations, self.held, self.stopping = ranks["incarnations"], ranks["held"], ranks["stopping"]
        self.stopped = ranks["stopped"]
        for center in state["centers"]:
            data = {**self.store.get(f"model/{center}"), **self.store.get(f"members/{center}")}
            self.memberships[center] = Membership.load(data)
            self.methods[center] = self.store.get(f"method/{center}")
        self._save_run()
        self._announced = False  # a shard may have missed what this actor's predecessor was about to tell it

    def _save_run(self) -> None:
        state = {"run": self.run, "shards": len(self.shards), "centers": [*self.memberships]}
        self.store.put("run", {**state, "restarts": self.restarts})

    def _save_ranks(self) -> None:
        ranks = {"incarnations": self.incarnations, "held": self.held}
        self.store.put("ranks", {**ranks, "stopping": self.stopping, "stopped": self.stopped})

    def _save_members(self, center: str) -> None:
        self.store.put(f"members/{center}", self.memberships[center].changes())

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait(self, end: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), max(0.001, end - time.monotonic()))

    async def _ready(self) -> None:
        """Wait for `begin`; after a restart, tell the shards who lives."""
        while self.run is None:
            await self._wait(time.monotonic() + WAIT_SECONDS)
        if not self._announced:
            self._announced = True
            for center in self.memberships:
                self._announce(center)

    async def pid(self) -> int:
        return os.getpid()

    # called by launchers ---------------------------------------------------------------------------------------

    async def begin(self, run: dict[str, Any], shards: list[Any]) -> None:
        """Set the run's plan and the shards that may hold its centers."""
        self.run, self.shards = run, shards
        self._save_ranks()
        self._save_run()
        self._notify()

    async def describe(self) -> dict[str, Any] | None:
        """Return the run's plan; None before `begin`."""
        return self.run

    async def assign_rank(self, rank: int | None) -> tuple[int, int]:
        """Give a rank, the lowest free one if none is named, and the number of its new incarnation."""
        await self._ready()
        if rank is None:
            rank = next(k for k in range(len(self.held) + 1) if k not in self.held)
        incarnation = self.incarnations.get(rank, 0)
        self.incarnations[rank] = incarnation + 1
        self.held[rank] = incarnation
        self._save_ranks()
        return rank, incarnation

    async def mark_dead(self, rank: int, incarnation: int, keep: bool = False) -> None:
        """Note a worker's end; its rank is free again unless it is kept for a restart."""
        await self._ready()
        self.heard = {who: when for who, when in self.heard.items() if who[:2] != (rank, incarnation)}
        if not keep and self.held.get(rank) == incarnation:
            del self.held[rank]
            self._save_ranks()
        changed = [center for center, members in self.memberships.items() if members.mark_dead(rank, incarnation)]
        for center in self.memberships.keys() - changed:
            self._save_members(center)  # that it is dead, whether or not it had joined
        await self._enroll(*changed)
        self._notify()

    async def stop(self, workers: list[tuple[int, int]] | None = None) -> None:
        """Ask workers to stop, by the answers to their heartbeats: these (rank, incarnation), or all."""
        if workers is None:
            self.stopping = True
        else:
            self.stopped |= set(workers)
        self._save_ranks()

    async def drain(self) -> list[tuple[str, bytes]]:
        """Return what workers printed and recorded since the last call: (file, bytes)."""
        output, self.output = self.output, []
        return output

    async def dump(self) -> dict[str, Any] | None:
        """Return the state as plain data, for the launcher to read; None before `begin`."""
        if self.run is None:
            return None
        await self._ready()
        memberships = {center: membership.dump() for center, membership in self.memberships.items()}
        return {"held": self.held, "memberships": memberships, "restarts": self.restarts, "silent": self._silent()}

    def _silent(self) -> list[tuple[int, int, str]]:
        """Return rank, incarnation and process of those whose heartbeats have stopped."""
        # A heartbeat that arrives after the end of its worker must not count.
        self.heard = {who: when for who, when in self.heard.items() if self.held.get(who[0]) == who[1]}
        late = time.monotonic() - SILENT_SECONDS
        return sorted(who for who, heard in self.heard.items() if heard < late)

    async def method(self, center: str) -> bytes | None:
        """Return the method of a center, packed: its shards need it when they are restarted."""
        return self.methods.get(center)

    async def announce(self, center: str) -> None:
        """Tell the shards again who lives: one of them was restarted."""
        await self._ready()
        await self._enroll(center)

    # called by workers -----------------------------------------------------------------------------------------

    async def heartbeat(
        self, rank: int, incarnation: int, output: list[tuple[str, bytes]], process: str = "", last: bool = False
    ) -> bool:
        """Take output and records of a process (its id and node); return whether the worker shall stop."""
        self.output += output
        self.heard[rank, incarnation, process] = time.monotonic()
        if last:
            del self.heard[rank, incarnation, process]
        newer = self.incarnations.get(rank, 0) > incarnation + 1
        return self.stopping or (rank, incarnation) in self.stopped or newer

    async def open(self, center: str, rank: int, incarnation: int, header: dict[str, Any]) -> dict[str, Any]:
        """Return the model that a worker must fit, where the shards are, and whether to upload the start value."""
        await self._ready()
        assert self.run is not None
        new = center not in self.memberships
        membership = self.memberships.setdefault(center, Membership(len(self.shards)))
        if new:
            for known in list(self.memberships.values()):
                for dead, last in [*known.dead.items()]:
                    membership.mark_dead(dead, last)  # nobody need wait for it here either
        upload = membership.open(rank, incarnation, header)
        self._save_members(center)
        if new:
            self.store.put(f"model/{center}", membership.model())
            self._save_run()
        return {
            "header": membership.header,
            "bounds": membership.bounds,
            "shards": self.shards[: len(membership.bounds)],
            "upload": upload,
            "opened": membership.opened,
            "secret": self.run["secret"],
        }

    async def opened(self, center: str, method: bytes) -> None:
        """Note that the shards have the start value, and the method, packed, that restarted ones will need."""
        await self._ready()
        self.memberships[center].opened, self.methods[center] = True, method
        self.store.put(f"method/{center}", method)
        self._save_members(center)
        self._notify()

    async def join(self, center: str, rank: int, incarnation: int) -> int:
        """Add a worker; the shards know it before it trains. Return how many live; 0: it is known to be dead."""
        await self._ready()
        membership = self.memberships[center]
        if not membership.join(rank, incarnation):
            return 0
        await self._enroll(center)
        self._notify()
        return len(membership.members())

    async def gather(self, center: str, launched: int, seconds: float) -> tuple[int, int]:
        """Wait until all launched ranks have joined; return how many have not, and how many live."""
        await self._ready()
        end = time.monotonic() + seconds
        while (missing := self.memberships[center].missing(launched)) and time.monotonic() < end:
            await self._wait(end)
        return missing, len(self.memberships[center].members())

    async def begin_training(self, center: str, elapsed: float) -> float:
        """Return the time of day at which training began: that of the first call."""
        await self._ready()
        membership = self.memberships[center]
        if membership.began is None:
            membership.began = time.time() - elapsed
            self._save_members(center)
        return membership.began

    async def leave(self, center: str, rank: int, incarnation: int) -> None:
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
        self._save_members(center)
        return same

    async def leave_behind(self, center: str, rest: bytes, aliases: dict[str, str]) -> None:
        """Keep the model's other tensors, as the bytes of a safetensors file; the first worker to leave brings them."""
        await self._ready()
        membership = self.memberships[center]
        if membership.rest is None:
            membership.rest, membership.aliases = rest, aliases
            self.store.put(f"model/{center}", membership.model())

    async def wait_turn(self, center: str, rank: int) -> int:
        """Wait for a turn, a second at most; return whose it is."""
        await self._ready()
        membership, end = self.memberships[center], time.monotonic() + WAIT_SECONDS
        while (holder := membership.holder()) != rank and time.monotonic() < end:
            await self._wait(end)
        return holder

    async def pass_turn(self, center: str, rank: int) -> None:
        """Let the next worker act."""
        await self._ready()
        membership = self.memberships[center]
        if membership.holder() == rank:
            membership.turn += 1  # not stored: that would cost every step a write, and any turn is one to go on from
        self._notify()

    # announcements to the shards -------------------------------------------------------------------------------

    async def _enroll(self, *centers: str) -> None:
        """Tell the shards who lives; return when they have heard it, or after a few seconds without an answer."""
        if tasks := [task for center in centers for task in self._announce(center)]:
            await asyncio.wait(tasks, timeout=ENROLL_SECONDS)

    def _announce(self, center: str) -> list[asyncio.Task[None]]:
        """Begin to tell the shards who lives.

        Shards are threaded actors, and Ray keeps no order of calls to those: the serial number lets a shard ignore what
        comes late. A shard that does not answer, as one that is being restarted, is told again in the background.
        """
        membership = self.memberships[center]
        membership.serial += 1
        self._save_members(center)
        serial, members, dead = membership.serial, membership.members(), dict(membership.dead)
        tasks = [
            asyncio.create_task(self._tell(shard, center, serial, members, dead))
            for shard in self.shards[: len(membership.bounds)]
        ]
        self._telling.update(tasks)
        for task in tasks:
            task.add_done_callback(self._telling.discard)
        return tasks

    async def _tell(self, shard: Any, center: str, serial: int, members: list[int], dead: dict[int, int]) -> None:
        """Tell one shard, again and again until it has heard it or there is something newer to tell."""
        while self.memberships[center].serial == serial:
            with contextlib.suppress(Exception):  # Ray's own errors have no common base here; all mean "not told"
                if await asyncio.wait_for(shard.enroll.remote(center, serial, members, dead), ENROLL_SECONDS):
                    return
            await asyncio.sleep(RETRY_SECONDS)
