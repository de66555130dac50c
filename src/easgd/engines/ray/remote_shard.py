"""The class of a shard as Ray knows it: it imports nothing until it is an actor.

Ray imports an actor's class wherever a handle of it arrives. The coordinator has handles of all shards and computes
nothing: with this class it starts in a fraction of a second, and workers, who wait for it, start seconds earlier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _forwarded(name: str) -> Callable[..., Any]:
    def call(self: RemoteShard, *args: Any) -> Any:
        return getattr(self.shard, name)(*args)

    call.__name__ = name
    return call


class RemoteShard:
    """A `ShardActor` in an actor's process; its methods are that one's."""

    def __init__(self) -> None:
        from easgd.engines.ray.shard_actor import ShardActor

        self.shard = ShardActor()

    pid, address, versions = _forwarded("pid"), _forwarded("address"), _forwarded("versions")
    open, restore, enroll = _forwarded("open"), _forwarded("restore"), _forwarded("enroll")
    exchange, end_record = _forwarded("exchange"), _forwarded("end_record")
    hold, take, release = _forwarded("hold"), _forwarded("take"), _forwarded("release")
