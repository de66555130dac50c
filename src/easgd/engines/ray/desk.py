"""The run's desk: who is in the run, whose turn it is, what workers printed and recorded. One small actor.

Everything happens on one event loop, so nothing needs a lock. What it knows is plain data, of which the launcher keeps
a copy: a desk that was killed is restarted by Ray and given it back.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any

from easgd.center.roll import Roll

TURN_SECONDS = 1.0


class Desk:
    """The actor."""

    def __init__(self) -> None:
        self.run: dict[str, Any] | None = None
        self.shards: list[Any] = []
        self.rolls: dict[str, Roll] = {}
        self.methods: dict[str, Any] = {}
        self.seats: dict[int, int] = {}  # rank -> incarnations started
        self.held: dict[int, int] = {}  # rank -> incarnation that holds it
        self.parcels: list[tuple[str, bytes]] = []
        self.stopping = False
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

    async def seat(self, rank: int | None) -> tuple[int, int]:
        """Give a rank, the lowest free one if none is named, and the number of its new incarnation."""
        await self._ready()
        if rank is None:
            rank = next(k for k in range(len(self.held) + 1) if k not in self.held)
        incarnation = self.seats.get(rank, 0)
        self.seats[rank] = incarnation + 1
        self.held[rank] = incarnation
        return rank, incarnation

    async def bury(self, rank: int, incarnation: int, keep: bool = False) -> None:
        """A worker has ended, however; its rank is free again unless it is kept for a restart."""
        await self._ready()
        if not keep and self.held.get(rank) == incarnation:
            del self.held[rank]
        for center, roll in self.rolls.items():
            if roll.bury(rank, incarnation):
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
        rolls = {center: roll.dump() for center, roll in self.rolls.items()}
        return {"run": self.run, "seats": self.seats, "held": self.held, "rolls": rolls, "stopping": self.stopping}

    async def restore(self, data: dict[str, Any], shards: list[Any], methods: dict[str, Any]) -> None:
        """Go on from a copy."""
        self.run, self.shards, self.stopping = data["run"], shards, data["stopping"]
        self.seats, self.held, self.methods = data["seats"], data["held"], methods
        self.rolls = {center: Roll.load(roll) for center, roll in data["rolls"].items()}
        self._notify()

    async def method(self, center: str) -> Any:
        """The method of a center: its shards need it when they are made again."""
        return self.methods.get(center)

    # the workers' side -----------------------------------------------------------------------------------------

    async def beat(self, rank: int, incarnation: int, parcels: list[tuple[str, bytes]]) -> bool:
        """Take output and records; return whether the worker shall stop."""
        self.parcels += parcels
        return self.stopping or self.seats.get(rank, 0) > incarnation + 1

    async def open(self, center: str, rank: int, incarnation: int, header: dict[str, Any]) -> dict[str, Any]:
        """A worker brings its model: what it must fit, where the shards are, whether to bring the start value."""
        await self._ready()
        assert self.run is not None
        roll = self.rolls.setdefault(center, Roll(len(self.shards)))
        upload = roll.open(rank, incarnation, header)
        return {
            "header": roll.header,
            "bounds": roll.bounds,
            "shards": self.shards[: len(roll.bounds)],
            "upload": upload,
            "opened": roll.opened,
            "secret": self.run["secret"],
        }

    async def opened(self, center: str, method: Any) -> None:
        """The start value is at the shards."""
        await self._ready()
        self.rolls[center].opened, self.methods[center] = True, method
        self._notify()

    async def join(self, center: str, rank: int, incarnation: int) -> int:
        """A worker enters; the shards know it before it trains. Returns how many live; 0: it is taken for dead."""
        await self._ready()
        roll = self.rolls[center]
        if not roll.join(rank, incarnation):
            return 0
        await self._enroll(center)
        self._notify()
        return len(roll.members())

    async def gather(self, center: str, launched: int, seconds: float) -> int:
        """Wait until all launched ranks have come; return how many have not."""
        await self._ready()
        end = time.monotonic() + seconds
        while (missing := self.rolls[center].missing(launched)) and time.monotonic() < end:
            await self._wait(end)
        return missing

    async def begin_training(self, center: str, elapsed: float) -> float:
        """The time of day at which training began; the first to ask decides."""
        await self._ready()
        roll = self.rolls[center]
        if roll.began is None:
            roll.began = time.time() - elapsed
        return roll.began

    async def leave(self, center: str, rank: int, incarnation: int) -> None:
        """A worker leaves politely."""
        await self._ready()
        if center in self.rolls and self.rolls[center].leave(rank, incarnation):
            await self._enroll(center)
        self._notify()

    async def leave_behind(self, center: str, rest: bytes, aliases: dict[str, str]) -> None:
        """Keep the first worker's rest of the model, as the bytes of a safetensors file."""
        await self._ready()
        roll = self.rolls[center]
        if roll.rest is None:
            roll.rest, roll.aliases = rest, aliases

    async def wait_turn(self, center: str, rank: int) -> int:
        """Wait for a turn, a second at most; return whose it is."""
        await self._ready()
        roll, end = self.rolls[center], time.monotonic() + TURN_SECONDS
        while (holder := roll.holder()) != rank and time.monotonic() < end:
            await self._wait(end)
        return holder

    async def pass_turn(self, center: str, rank: int) -> None:
        """The next may act."""
        await self._ready()
        roll = self.rolls[center]
        if roll.holder() == rank:
            roll.turn += 1
        self._notify()

    async def _enroll(self, center: str) -> None:
        """Tell the shards who lives. One that is being restarted hears it from the launcher."""
        roll = self.rolls[center]
        calls = [s.enroll.remote(center, roll.members(), roll.dead) for s in self.shards[: len(roll.bounds)]]
        with contextlib.suppress(Exception):
            await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 5.0)
