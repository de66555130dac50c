"""Ray's calls, as far as the engine makes them itself; the simulation (`tests/support/chaos`) answers them instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ray as _ray


@dataclass
class Calls:
    """What is used of `ray` to find actors, to wait for their answers and to end them."""

    get: Callable[..., Any] = _ray.get
    wait: Callable[..., Any] = _ray.wait
    kill: Callable[[Any], None] = _ray.kill
    get_actor: Callable[..., Any] = _ray.get_actor
    nodes: Callable[[], list[dict[str, Any]]] = _ray.nodes
    cluster_resources: Callable[[], dict[str, float]] = _ray.cluster_resources
    available_resources: Callable[[], dict[str, float]] = _ray.available_resources


ray = Calls()


def shard_name(k: int) -> str:
    """The name of shard k's actor."""
    return f"shard-{k}"


def find_shard(run: str, k: int) -> Any:
    """Return the actor of a run's shard k."""
    return ray.get_actor(shard_name(k), namespace=run)
