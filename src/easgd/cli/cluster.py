"""The part of `easgd launch` that is for Ray clusters."""

from __future__ import annotations

import shlex
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from easgd.engines.local.process import describe_exit
from easgd.engines.ray.cluster import Cluster, check_installed, connect
from easgd.engines.ray.run import TOKEN, launcher_for, owned_run
from easgd.engines.ray.settings import Settings
from easgd.errors import SettingError
from easgd.launch.output import say
from easgd.launch.result import save_center
from easgd.launch.run_directory import OwnedRun, base, live_runs, new_id
from easgd.records import Event, Step, read_records

if TYPE_CHECKING:
    from easgd.cli.launch import LaunchOptions
    from easgd.engines.ray.launch import RayLauncher

STRAGGLER = 1.5


def launch(options: LaunchOptions) -> int:
    """Start or join a run on a cluster, stay until it ends, print what it cost."""
    check_installed()
    settings = Settings(
        restarts=options.restarts, grace=options.grace, shards=options.shards, interval=options.interval,
        compression=options.compression, gpus=options.gpus,
    )  # fmt: skip
    target = _target(options.target)
    if options.join is not None:
        return _join(options, target, settings)
    workers = 4 if options.workers is None else options.workers
    name = Path(options.target[1]).stem if options.target[0] == "script" else options.target[1].rpartition(".")[2]
    cluster = connect(None if options.ray == "local" else options.ray)
    try:
        id_, command = new_id(name), shlex.join(options.target[1:])
        out = Path("runs", id_) if options.out is None else Path(options.out)
        with owned_run(cluster, id_, workers, out, command, options.schedule) as run:
            say(f"run {run.id}: {workers} workers on {_machines(cluster)}, logs and records in {run.out}")
            launcher = launcher_for(run, cluster, target, settings)
            try:
                launcher.begin()
                code = launcher.run()
            finally:
                launcher.close()
            _report(run, launcher)
    finally:
        cluster.close()
    return code


def _target(target: list[str]) -> list[Any]:
    """What a seat runs. A script travels with its text: other machines need not have it."""
    kind, name, *args = target
    if kind == "module":
        return target
    path = Path(name).absolute()
    return ["script", str(path), path.read_bytes(), *args]


def _machines(cluster: Cluster) -> str:
    nodes = len(cluster.nodes())
    return f"the {nodes} nodes of the Ray cluster at {cluster.address}" if nodes > 1 else f"Ray at {cluster.address}"


def _join(options: LaunchOptions, target: list[Any], settings: Settings) -> int:
    """Add workers to a run: of this machine by its name alone, of a cluster elsewhere with its address."""
    from easgd.engines.ray.launch import RayLauncher

    assert options.join is not None
    name, address, token = Path(options.join).name, options.ray, None
    here = live_runs().get(name)
    if here is not None and here.ray is not None:
        address = address or here.ray
        path = base() / name / TOKEN
        token = path.read_text() if path.exists() else None
    if address in (None, "local"):
        raise SettingError(f"run {name!r} is not on this machine; give the cluster's address, --ray 10.0.0.1:6379")
    cluster = connect(address, token)
    try:
        launcher = RayLauncher(
            cluster, name, Path("."), target, options.workers or 1, settings=settings, join=True
        )  # fmt: skip
        try:
            launcher.begin()
            return launcher.run()
        finally:
            launcher.close()
    finally:
        cluster.close()


def _report(run: OwnedRun, launcher: RayLauncher) -> None:
    """Save the center, print the time split, the stragglers, the bytes, and the exit codes if one is not 0."""
    from easgd.cli.launch import print_time_split

    if launcher.center is not None and (saved := save_center(launcher.center, run.out)):
        say(f"the center is saved in {saved}")
    print_time_split(run.out)
    for line in summary(run.out):
        print(line)
    if any(launcher.exit_codes.values()):
        ends = ", ".join(f"{rank}: {describe_exit(code)}" for rank, code in sorted(launcher.exit_codes.items()))
        say(f"workers ended with {ends}")


def summary(out: Path) -> list[str]:
    """Who was slow, on which machine, and how many bytes each worker moved."""
    steps: dict[int, list[Step]] = {}
    nodes: dict[int, str] = {}
    for record in read_records(out):
        if isinstance(record, Step):
            steps.setdefault(record.worker, []).append(record)
        elif isinstance(record, Event) and record.worker is not None and record.node:
            nodes[record.worker] = record.node
    pace = {worker: statistics.median(s.compute + s.data for s in rows) for worker, rows in steps.items()}
    if not pace:
        return []
    usual = statistics.median(pace.values())
    lines = [
        f"straggler: worker {worker} on {nodes.get(worker, '?')} takes {seconds / usual:.1f} times the usual step"
        for worker, seconds in sorted(pace.items())
        if seconds > STRAGGLER * usual
    ]
    moved = sum(s.bytes for rows in steps.values() for s in rows)
    taken = sum(len(rows) for rows in steps.values())
    per_node = {node: sum(n == node for n in nodes.values()) for node in sorted(set(nodes.values()))}
    lines.append(f"moved {moved / 1e6:.4g} MB over the network, {moved / taken / 1e3:.4g} KB a step")
    lines.append("workers by node: " + ", ".join(f"{node}: {count}" for node, count in per_node.items()))
    return lines
