"""`easgd.run(fn, engine="ray")` and the part of `easgd launch --ray` that it shares: one run from start to result."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from easgd.engines.ray.cluster import Cluster, check_installed, connect
from easgd.engines.ray.settings import Settings
from easgd.engines.run import Result
from easgd.launch.observer import Observer, ObserverThread
from easgd.launch.result import save_center
from easgd.launch.run_directory import OwnedRun, clean_stale, new_id
from easgd.records import read_records

if TYPE_CHECKING:
    from easgd.engines.ray.launch import RayLauncher

TOKEN = "ray-token"


@contextmanager
def owned_run(
    cluster: Cluster, id_: str, workers: int, out: Path | None, command: str = "", schedule: str | None = None,
    elapsed: float | None = None,
) -> Iterator[OwnedRun]:  # fmt: skip
    """A run directory on this machine, so that `--list` shows the run and `--join` finds its cluster."""
    clean_stale()
    run = OwnedRun(id_, workers, out, command, schedule, elapsed or 0.0, cluster.address)
    if token := os.environ.get("RAY_AUTH_TOKEN"):
        # For `--join` on this machine; the folder is this user's alone, and gone with the run.
        with open(os.open(run.path / TOKEN, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
            file.write(token)
    try:
        yield run
    finally:
        run.close()


def launcher_for(
    run: OwnedRun, cluster: Cluster, target: Sequence[Any], settings: Settings, elapsed: float | None = None
) -> RayLauncher:  # fmt: skip
    """The launcher of a run of one's own."""
    from easgd.engines.ray.launch import RayLauncher

    about = run.description
    return RayLauncher(
        cluster, run.id, run.out, target, about.workers, schedule=about.schedule, settings=settings,
        started=about.started, elapsed=elapsed,
    )  # fmt: skip


def run_on_ray(
    fn: Callable[..., object], workers: int, args: Sequence[object], restarts: int, schedule: str | None,
    out: Path | None, watch: Observer | None, elapsed: float | None, options: Mapping[str, Any],
) -> Result:  # fmt: skip
    """Train a function on a cluster; see `easgd.run`."""
    check_installed()
    rest = {name: value for name, value in options.items() if name != "address"}
    settings = Settings.of({"restarts": restarts, **rest})
    cluster = connect(options.get("address"))
    try:
        with owned_run(cluster, new_id("run"), workers, out, schedule=schedule, elapsed=elapsed) as run:
            launcher = launcher_for(run, cluster, ["function", fn, tuple(args)], settings, elapsed)
            try:
                launcher.begin()
                with ObserverThread(watch, launcher.seen):
                    launcher.run()
            finally:
                launcher.close()
            if launcher.center is not None and out is not None:
                save_center(launcher.center, run.out)
            codes = [launcher.exit_codes.get(rank, -signal.SIGKILL) for rank in range(workers)]
            result = Result(launcher.center, codes, list(read_records(run.out)))
    finally:
        cluster.close()
    if launcher.signal is not None:
        signal.raise_signal(launcher.signal)  # all is cleared up: now it means what it meant to the caller
    return result
