"""How a worker finds the center of a run on a Ray cluster: the desk first, which knows the shards."""

from __future__ import annotations

import time
from typing import Any

import ray
import torch
from ray.exceptions import RayError
from torch import Tensor

from easgd.center import raylink
from easgd.center.delivery import Wire
from easgd.center.messages import Link, LinkError
from easgd.center.raylink import Desk, RayLink, numpy_of, tensors_of
from easgd.center.remote import RemoteCenter, check_header
from easgd.center.segment import Layout, check_saved
from easgd.center.sockets import SocketLink
from easgd.compress import Codec
from easgd.errors import CenterLostError, UnreachableError
from easgd.methods import Method

POLL = 0.02
OPEN_SECONDS = 60.0
LINK_SECONDS = 10.0


class Membership:
    """One worker's dealings with the desk of its run, about one center."""

    def __init__(self, desk: Desk, center: str, rank: int, incarnation: int) -> None:
        self.desk, self.center, self.rank, self.incarnation = desk, center, rank, incarnation
        self.shards: list[Any] = []
        self.news: list[tuple[str, str]] = []

    def open(
        self, method: Method, codec: str | None, start: Tensor, header: dict[str, Any], saved: dict[str, Any] | None
    ) -> dict[str, Any]:  # fmt: skip
        """Bring the model; whoever is first brings the start value, or a saved center to go on from."""
        end = time.monotonic() + OPEN_SECONDS
        while True:
            answer: dict[str, Any] = self.desk.ask("open", self.center, self.rank, self.incarnation, header)
            self.shards = answer["shards"]
            check_header(header, answer["header"])
            if answer["opened"]:
                return answer
            if answer["upload"]:
                self._upload(method, codec, start, saved, answer["bounds"])
                self.desk.ask("opened", self.center, method)
            elif time.monotonic() > end:
                raise UnreachableError(f"worker {self.rank}: nobody has opened the center within {OPEN_SECONDS:g} s")
            else:
                time.sleep(POLL)

    def _upload(
        self, method: Method, codec: str | None, start: Tensor, saved: dict[str, Any] | None,
        bounds: list[tuple[int, int]],
    ) -> None:  # fmt: skip
        slots, version = method.center_slots(start.to(torch.float32)), 0
        if saved is not None:
            check_saved(saved, slots)
            slots, version = saved["slots"], saved["version"]
        calls = [
            shard.open.remote(self.center, method, codec, numpy_of({n: v[a:b] for n, v in slots.items()}), version)
            for shard, (a, b) in zip(self.shards, bounds, strict=True)
        ]
        try:
            ray.get(calls, timeout=OPEN_SECONDS)
        except RayError as error:
            raise UnreachableError(f"the center could not be opened ({type(error).__name__})") from error

    def link(self, k: int, secret: bytes) -> Link:
        """A way to shard k: a socket of its own where one can be had, else Ray's calls."""
        shard = self.shards[k]
        if not secret:
            return RayLink(shard)
        try:
            address = ray.get(shard.address.remote(secret), timeout=LINK_SECONDS)
        except RayError as error:
            raise LinkError(f"it is being restarted ({type(error).__name__})") from error
        try:
            return SocketLink(tuple(address), secret)
        except LinkError as error:
            self.news.append(("fallback", f"shard {k} by Ray's own calls: {error}"))
            return RayLink(shard)

    def join(self) -> int:
        """Enter; return how many live."""
        living: int = self.desk.ask("join", self.center, self.rank, self.incarnation)
        if not living:
            raise CenterLostError(f"worker {self.rank}: a later incarnation has taken its place in the run")
        return living

    def gather(self, launched: int, seconds: float) -> int:
        """Wait until all launched workers have come; return how many have not."""
        missing: int = self.desk.ask("gather", self.center, launched, seconds, seconds=seconds + 10)
        return missing

    def begin(self, elapsed: float) -> float:
        """The time of day at which training began."""
        began: float = self.desk.ask("begin_training", self.center, elapsed)
        return began

    def leave(self) -> None:
        """Leave politely."""
        self.desk.ask("leave", self.center, self.rank, self.incarnation, seconds=10.0)

    def leave_behind(self, rest: bytes, aliases: dict[str, str]) -> None:
        """Leave the rest of the model."""
        self.desk.ask("leave_behind", self.center, rest, aliases, seconds=10.0)

    def wait_turn(self) -> int:
        """Wait a while for the turn; return whose it is."""
        holder: int = self.desk.ask("wait_turn", self.center, self.rank)
        return holder

    def pass_turn(self) -> None:
        """The next."""
        self.desk.ask("pass_turn", self.center, self.rank)

    def snapshot(self) -> dict[str, Tensor]:
        """All the center's vectors at one moment; repeated while a shard is being restarted."""
        end = time.monotonic() + OPEN_SECONDS
        while True:
            try:
                parts = [tensors_of(state["slots"]) for state in raylink.snapshot(self.shards, self.center)]
                return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
            except UnreachableError:
                if time.monotonic() > end:
                    raise
                time.sleep(POLL)


def connect(
    run: str, center: str, method: Method, start: Tensor, layout: Layout, rank: int, incarnation: int, launched: int,
    compression: str | None, saved: dict[str, Any] | None = None,
) -> RemoteCenter:  # fmt: skip
    """Find the run, open its center or check that this worker fits it; `RemoteCenter.join` enters."""
    codec = Codec.named(compression)
    membership = Membership(Desk(run), center, rank, incarnation)
    header = {"layout": layout.as_json(), "size": layout.size, "method": repr(method), "compression": codec.name}
    answer = membership.open(method, compression, start, header, saved)

    def open_link(k: int) -> Link:
        return membership.link(k, answer["secret"])

    wire = Wire(center, rank, incarnation, answer["bounds"], open_link)
    wire.news = membership.news
    return RemoteCenter(membership, wire, method, layout, codec, rank, launched)
