"""What the actor of a shard does: it holds one shard of every center of a run (most have one)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch

from easgd.center.history import SUFFIX, History
from easgd.engines.ray.actor_link import numpy_of, tensors_of
from easgd.engines.ray.ledger import Reached
from easgd.engines.ray.messages import Reply, Request, Status
from easgd.engines.ray.pipeline import PipelinedExchange, Send, SendBytes
from easgd.engines.ray.shard import Shard
from easgd.engines.ray.sockets import SocketServer

Head = tuple[Any, ...]


class ShardActor:
    """What `RemoteShard` calls, on several threads: a synchronous round is a meeting of them."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        self.shards: dict[str, Shard] = {}
        self.server: SocketServer | None = None

    def pid(self) -> int:
        """Return the process id, so that tests can kill it."""
        return os.getpid()

    def address(self, secret: bytes) -> tuple[str, int]:
        """Where this process listens for workers that know the secret, on the address that Ray uses."""
        if self.server is None:
            self.server = SocketServer(
                ray.util.get_node_ip_address(), secret, self._serve, self._expected, self._pipeline
            )
        return self.server.address

    def _serve(
        self, request: Request, message: torch.Tensor | None, pipelined: PipelinedExchange | None = None
    ) -> tuple[Reply, torch.Tensor | None]:
        shard = self.shards.get(request.center)
        return (Reply(Status.BLANK), None) if shard is None else shard.exchange(request, message, pipelined)

    def _pipeline(
        self, request: Request, size: int, send_head: Send, send_bytes: SendBytes
    ) -> PipelinedExchange | None:
        shard = self.shards.get(request.center)
        return None if shard is None else shard.pipeline(request, size, send_head, send_bytes)

    def _expected(self, center: str) -> int | None:
        shard = self.shards.get(center)
        return None if shard is None else shard.most_bytes

    def versions(self) -> dict[str, int]:
        """The centers it has; none after a restart."""
        return {center: shard.version for center, shard in self.shards.items()}

    def open(
        self, center: str, method: Any, codec: str | None, slots: dict[str, np.ndarray],
        cuts: list[tuple[int, int]] | None = None, clocks: Sequence[Sequence[int]] = (), guard: float = 0.0,
        at: int = 0, history: str = "",
    ) -> None:  # fmt: skip
        """Take these vectors as the start value; a second upload of the same center is ignored."""
        if center not in self.shards:
            shard = Shard(method, codec, tensors_of(slots), cuts, clocks, guard)
            self._record(shard, center, at, history)
            self.shards[center] = shard

    def _record(self, shard: Shard, center: str, at: int, history: str) -> None:
        """Write the shard's changes down, if that was asked for and the run's folder is on this machine."""
        if history and Path(history).is_dir():
            (folder := Path(history, center)).mkdir(exist_ok=True)
            path = folder / f"shard-{at}-{shard.epoch}{SUFFIX}"
            shard.record(History(path), at, restored=shard.epoch > 0)

    def end_record(self) -> None:
        """Write down the last values, when the run is over."""
        for shard in self.shards.values():
            shard.end_record()

    def restore(
        self, center: str, method: Any, codec: str, state: dict[str, Any], serial: int, members: list[int],
        dead: dict[int, int], guard: float = 0.0, at: int = 0, history: str = "",
    ) -> None:  # fmt: skip
        """Begin with a saved state, as a new epoch."""
        slots = tensors_of(state["slots"])
        shard = Shard(method, codec, slots, state["cuts"], guard=guard)
        shard.load({**state, "slots": slots})
        self._record(shard, center, at, history)
        shard.enroll(serial, members, dead)
        self.shards[center] = shard

    def enroll(self, center: str, serial: int, members: list[int], dead: dict[int, int]) -> bool:
        """Hear who lives; False if this shard has no value yet, and must be told again."""
        if center in self.shards:
            self.shards[center].enroll(serial, members, dead)
        return center in self.shards

    def exchange(self, head: Head, payload: np.ndarray | None) -> tuple[Head, np.ndarray | None]:
        """Serve one request that came through Ray: what it hands out is read-only, so the message is copied."""
        message = None if payload is None else torch.from_numpy(payload.copy())
        reply, answer = self._serve(Request(*head), message)
        return tuple(reply), None if answer is None else answer.numpy()

    def hold(self, center: str, ticket: str) -> Reached:
        """First half of a snapshot."""
        return self.shards[center].hold(ticket)

    def take(self, center: str, target: Reached | None, ticket: str) -> dict[str, Any]:
        """Second half of a snapshot."""
        state = self.shards[center].take(target, ticket=ticket)
        return {**state, "slots": numpy_of(state["slots"])}

    def release(self, center: str, ticket: str) -> None:
        """Give a snapshot up."""
        if center in self.shards:
            self.shards[center].release(ticket)
