"""What a run on a cluster needs before its workers: a plan, a coordinator, and the center's shards."""

from __future__ import annotations

import os
import secrets
import sys
from functools import partial
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from easgd.engines.ray.calls import find_shard, shard_name
from easgd.engines.ray.cluster import Cluster, encrypted
from easgd.engines.ray.coordinator import Coordinator
from easgd.engines.ray.private import ClusterStore
from easgd.engines.ray.remote_shard import RemoteShard
from easgd.engines.ray.settings import Settings
from easgd.launch.run_directory import OwnedRun
from easgd.launch.terminal import terminal_setting

MOST_SHARDS = 8


def plan_of(run: OwnedRun, settings: Settings) -> dict[str, Any]:
    """Return what every worker, and a launcher that joins later, must know."""
    about = run.description
    ours = {
        k: v
        for k, v in os.environ.items()
        if k.startswith("EASGD_") and k not in ("EASGD_RUN", "EASGD_OUT", "EASGD_HISTORY")
    }
    return {
        "run": run.id,
        "workers": about.workers,
        "nproc": about.nproc,
        "out": str(run.out),
        "schedule": about.schedule,
        "compression": settings.compression,
        "machine_period": settings.machine_period,
        "history": about.history or None,
        "started": about.started,
        "elapsed": about.elapsed,
        "environment": ours | terminal_setting(),
        "path": [path for path in sys.path if path],
        "cwd": os.getcwd(),
        "secret": secrets.token_bytes(32) if settings.sockets and not encrypted() else b"",
    }


def place(run: str, cluster: Cluster, workers: int, settings: Settings) -> tuple[Any, list[Any]]:
    """Make the coordinator and the shards, the shards on as many machines as there are."""
    nodes = cluster.nodes()
    count = settings.shards or min(len(nodes), MOST_SHARDS)
    coordinator = _actor(run, Coordinator, "coordinator", nodes[0], settings, max_concurrency=1000).remote(
        ClusterStore(run), partial(find_shard, run)
    )
    # One thread for every worker that may wait in it, and some for snapshots.
    threads = 2 * workers + 16
    shard_actors = [
        _actor(run, RemoteShard, shard_name(k), nodes[k % len(nodes)], settings, max_concurrency=threads).remote()
        for k in range(count)
    ]
    return coordinator, shard_actors


def _actor(run: str, kind: type, name: str, node: dict[str, Any], settings: Settings, max_concurrency: int) -> Any:
    # On the given node while it lives, elsewhere when it does not. Ray ignores the node of an actor that asks for no
    # resource at all, so it asks for one byte.
    affinity = NodeAffinitySchedulingStrategy(node["NodeID"], soft=True)
    return ray.remote(kind).options(
        name=name, namespace=run, num_cpus=0, memory=1, max_restarts=settings.center_restarts,
        max_concurrency=max_concurrency, scheduling_strategy=affinity,
    )  # fmt: skip
