"""Mends taken out again, one at a time: the simulation must notice each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from unittest.mock import patch

import torch

from easgd.engines.ray import sockets
from easgd.engines.ray.coordinator import Coordinator
from easgd.engines.ray.ledger import Ledger
from easgd.engines.ray.shard import Shard
from easgd.engines.ray.transport import Transport
from easgd.runtime import time


@contextmanager
def stale_roll() -> Iterator[None]:
    """The last announcement of members wins, not the newest."""
    enroll = Shard.enroll

    def last_wins(self: Shard, *args: Any) -> None:
        self.serial = -1
        enroll(self, *args)

    with patch.object(Shard, "enroll", last_wins):
        yield


@contextmanager
def forgetful_ledger() -> Iterator[None]:
    """A shard does not know which exchanges it has applied."""
    entry = Ledger.entry

    def blank(self: Ledger, *args: Any) -> Any:
        if (found := entry(self, *args)) is not None:
            found.sequence = -1
        return found

    with patch.object(Ledger, "entry", blank):
        yield


@contextmanager
def dropped_ledger() -> Iterator[None]:
    """A shard forgets the ledger of a worker that an announcement does not name."""

    def drop(self: Ledger, rank: int) -> None:
        self.paces.pop(rank, None)
        self.entries = {key: entry for key, entry in self.entries.items() if key[0] != rank}

    with patch.object(Ledger, "leave", drop):
        yield


@contextmanager
def stale_coordinator() -> Iterator[None]:
    """The coordinator's members are saved every quarter of a second, not before each is acknowledged."""
    save = Coordinator._save_members

    def seldom(self: Coordinator, center: str) -> None:
        if time.monotonic() - vars(self).get("_saved_at", -1.0) > 0.25:
            vars(self)["_saved_at"] = time.monotonic()
            save(self, center)

    with patch.object(Coordinator, "_save_members", seldom):
        yield


@contextmanager
def told_once() -> Iterator[None]:
    """A shard that did not hear an announcement is not told again."""

    async def tell(self: Coordinator, shard: Any, *announcement: Any) -> None:
        with suppress(Exception):
            await shard.enroll.remote(*announcement)

    with patch.object(Coordinator, "_tell", tell):
        yield


@contextmanager
def one_hold() -> Iterator[None]:
    """The snapshot that ends first lets exchanges go on that another one holds up."""
    hold, take = Shard.hold, Shard.take

    def only_hold(self: Shard, ticket: str = "") -> Any:
        return hold(self)

    def only_take(self: Shard, target: Any = None, seconds: float = 5.0, ticket: str = "") -> Any:
        return {**take(self, target, seconds), "whole": True}

    with patch.object(Shard, "hold", only_hold), patch.object(Shard, "take", only_take):
        yield


@contextmanager
def kept_link() -> Iterator[None]:
    """A connection whose answer did not come in time is used again: the late answer is taken for the next one's."""
    with patch.object(Transport, "_drop", lambda self, k: None):
        yield


@contextmanager
def reused_memory() -> Iterator[None]:
    """A message that is sent again takes the place of the answer that it asks for."""

    def take(self: sockets.Buffers, center: str, fragment: int, sequence: int, size: int) -> Any:
        _, memory = self._last.setdefault((center, fragment), (0, torch.empty(1 << 16, dtype=torch.uint8)))
        return memory[:size]

    with patch.object(sockets.Buffers, "take", take):
        yield


@contextmanager
def short_read() -> Iterator[None]:
    """A connection that breaks off within a message has delivered all of it."""

    def read(sock: Any, into: memoryview) -> None:
        if sock.recv_into(into, 0, 0) == 0:
            raise ConnectionError("the other end has closed")

    with patch.object(sockets, "_read", read):
        yield


MUTANTS: dict[str, Callable[[], Any]] = {
    "stale roll": stale_roll,
    "forgetful ledger": forgetful_ledger,
    "dropped ledger": dropped_ledger,
    "stale coordinator": stale_coordinator,
    "told once": told_once,
    "one hold": one_hold,
    "kept link": kept_link,
    "reused memory": reused_memory,
    "short read": short_read,
}
