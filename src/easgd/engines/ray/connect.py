"""How a worker finds the center of a run on a Ray cluster: through the coordinator, which knows the shards."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from ray import get_runtime_context as runtime_context
from ray.exceptions import RayError
from torch import Tensor

from easgd.center.client import JoinRequest
from easgd.center.history import SUFFIX, History
from easgd.center.layout import (
    Layout,
    check_saved,
    fragment_bounds,
    fragment_cuts,
    refuse_misfit,
    saved_clocks,
)
from easgd.center.levels import check_levels
from easgd.compress import Codec
from easgd.engines.ray.actor_link import ActorLink, CoordinatorProxy, joint, numpy_of, snapshot
from easgd.engines.ray.calls import ray
from easgd.engines.ray.client import RayCenterClient
from easgd.engines.ray.machine_client import MachineClient
from easgd.engines.ray.messages import LinkError, ShardLink
from easgd.engines.ray.private import packed
from easgd.engines.ray.sockets import SocketLink
from easgd.engines.ray.transport import Transport
from easgd.errors import UnreachableError
from easgd.launch.run_directory import MachineDirectory
from easgd.runtime import time

POLL = 0.02
OPEN_SECONDS = 300.0  # the shards may still be starting, on a busy machine
LINK_SECONDS = 10.0


def connect(address: str, request: JoinRequest) -> RayCenterClient | MachineClient:
    """Find the run `address`, open its center or check that this worker fits it; the client's `join` enters.

    Where every machine has a center of its own, the worker gets that one.
    """
    if request.machine_period is None:
        return connect_to_center(address, request)
    check_levels(request.method)
    node = runtime_context().get_node_id()
    return MachineClient(connect_to_center(address, request), request, MachineDirectory(address, node))


def connect_to_center(address: str, request: JoinRequest) -> RayCenterClient:
    """Find the run's own center, which is on the cluster's shards."""
    coordinator = CoordinatorProxy(address)
    opened = open_center(coordinator, request)
    events: list[tuple[str, str]] = []

    def open_link(k: int) -> ShardLink:
        return link_to(opened["shards"][k], k, opened["secret"], events)

    transport = Transport(request.center, request.rank, request.incarnation, opened["bounds"], open_link, events)
    client = RayCenterClient(coordinator, opened["shards"], transport, request)
    folder = Path(opened["header"].get("history") or os.devnull, request.center)
    if folder.is_dir():  # else nobody asked for it, or the run's folder is on another machine
        client.history = History(folder / f"worker-{request.rank}-{request.incarnation}{SUFFIX}")
    return client


def read(address: str, name: str) -> tuple[Layout, dict[str, Tensor]]:
    """Read a center of the run `address`, between two exchanges."""
    membership = CoordinatorProxy(address).dump()["memberships"][name]
    actors = [ray.get_actor(f"shard-{k}", namespace=address) for k in range(len(membership["bounds"]))]
    slots, layout = joint(snapshot(actors, name)), Layout.from_json(membership["header"]["layout"])
    return layout, layout.split(slots.get("average", slots["x"]))


def open_center(coordinator: CoordinatorProxy, request: JoinRequest) -> dict[str, Any]:
    """Bring the model; whoever is first brings the start value, or a saved center to go on from."""
    header = {
        "layout": request.layout.as_json(),
        "size": request.layout.size,
        "method": repr(request.method),
        "compression": Codec.named(request.compression).name,
        "guard": request.guard,
        "history": "" if request.history is None else str(request.history),
    }
    end = time.monotonic() + OPEN_SECONDS
    while True:
        answer: dict[str, Any] = coordinator.open(request.center, request.rank, request.incarnation, header)
        check_header(header, answer["header"])
        if answer["opened"]:
            return answer
        if answer["upload"]:
            upload(request, answer["shards"], answer["bounds"])
            coordinator.opened(request.center, packed(request.method))
        elif time.monotonic() > end:
            raise UnreachableError(f"worker {request.rank}: nobody has opened the center within {OPEN_SECONDS:g} s")
        else:
            time.sleep(POLL)


def upload(request: JoinRequest, shards: list[Any], bounds: list[tuple[int, int]]) -> None:
    """Give every shard its part of the start value, or of the saved center."""
    method, slots = request.method, request.method.center_slots(request.start.to(torch.float32))
    clocks = [[0, 0]] * method.fragments
    if (saved := request.saved) is not None:
        check_saved(saved, slots)
        slots, clocks = saved["slots"], saved_clocks(saved, method.fragments)
    fragments = fragment_bounds(request.layout.size, method.fragments)
    calls = []
    for shard, (a, b) in zip(shards, bounds, strict=True):
        part = numpy_of({name: vector[a:b] for name, vector in slots.items()})
        cuts = [(cut.start, cut.stop) for cut in fragment_cuts(a, b, fragments)]
        history = "" if request.history is None else str(request.history)
        calls.append(
            shard.open.remote(
                request.center, method, request.compression, part, cuts, clocks, request.guard, a, history
            )
        )
    try:
        ray.get(calls, timeout=OPEN_SECONDS)
    except RayError as error:
        raise UnreachableError(f"the center could not be opened ({type(error).__name__})") from error


def link_to(shard: Any, k: int, secret: bytes, events: list[tuple[str, str]]) -> ShardLink:
    """Return a way to shard k: a socket of its own where one can be had, else Ray's calls."""
    if not secret:
        return ActorLink(shard)
    try:
        address = ray.get(shard.address.remote(secret), timeout=LINK_SECONDS)
    except RayError as error:
        raise LinkError(f"it is being restarted ({type(error).__name__})") from error
    try:
        return SocketLink(tuple(address), secret)
    except LinkError as error:
        events.append(("fallback", f"shard {k} by Ray's own calls: {error}"))
        return ActorLink(shard)


def check_header(mine: dict[str, Any], theirs: dict[str, Any]) -> None:
    """Refuse a worker whose model, method or guard is not the run's, and list the difference.

    The compression may differ: every request names its own.
    """
    problems = Layout.from_json(mine["layout"]).differences(Layout.from_json(theirs["layout"]))
    for what in ("method", "guard"):
        if mine[what] != theirs[what]:
            problems.append(f"the {what} is {mine[what]} here, {theirs[what]} in the run")
    refuse_misfit(problems)
