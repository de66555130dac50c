"""`easgd.run`: train a function on several workers, from a script or a notebook; and the table of engines."""

from __future__ import annotations

import importlib
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, cast

from easgd.errors import SettingError, unknown
from easgd.extras import require
from easgd.faults import Fault, check_plan
from easgd.launch.backend import Backend, RunRequest
from easgd.launch.checks import check_count, check_schedule
from easgd.launch.launcher import Launcher
from easgd.launch.observer import Observer
from easgd.launch.result import Result, save_centers
from easgd.launch.run_directory import clean_stale, new_id
from easgd.records import read_records

__all__ = ["Result", "engine_named", "run"]

ENGINES = {"local": "easgd.engines.local.backend", "ray": "easgd.engines.ray.backend"}


CAN_DO = {"local": ("death", "join", "pause", "restart", "slow"), "ray": ("death", "join", "restart", "slow")}
"""What faults of a plan each engine can let happen: Ray kills and starts processes of other machines, no more."""


class Engine(Protocol):
    """What the module of an engine has."""

    def start_run(self, request: RunRequest) -> AbstractContextManager[Backend]:
        """Make a run of one's own."""

    def join_run(self, reference: str, request: RunRequest) -> AbstractContextManager[Backend]:
        """Find a run of another launcher."""


def engine_named(name: str) -> Engine:
    """Import the engine with this name."""
    if name == "simulate":
        raise SettingError("engine = 'simulate': it has no processes; use easgd.simulate(…)")
    if name not in ENGINES:
        raise unknown("engine", name, [*ENGINES, "simulate"])
    if name == "ray":
        require("ray", "ray", "the Ray engine")
    return cast(Engine, importlib.import_module(ENGINES[name]))


def run(
    fn: Callable[..., object],
    workers: int = 4,
    engine: str = "local",
    args: Sequence[object] = (),
    restarts: int = 0,
    schedule: str | None = None,
    out: str | os.PathLike[str] | None = None,
    observer: Observer | None = None,
    elapsed: float | None = None,
    nproc_per_worker: int = 1,
    history: bool = False,
    faults: Sequence[Fault] = (),
    **options: Any,
) -> Result:
    """Call fn(*args) in every one of `workers` processes; `easgd.attach` in it finds its run by itself.

    Args:
        fn: a function that workers can import: defined at the top level of a module, or of the script that is run.
        workers: p.
        engine: "local" for processes of this machine, "ray" for those of a Ray cluster.
        args: its arguments; each worker gets its own copy.
        restarts: how often each worker is started again after a death.
        schedule: "async" (default), "sync" or "round-robin".
        out: folder for logs, records and the center; None keeps them only in the result.
        observer: is shown the center ten times a second, and when all workers have ended.
        elapsed: seconds that this run has had before: its records go on from there in `out`.
        nproc_per_worker: processes of each worker: a group that finds torchrun's variables, for DDP or FSDP2 inside it.
        history: write every exchange down in `out`, for `easgd doctor --history`; as many bytes as are exchanged.
        faults: a plan of faults that the launcher lets happen, see `easgd.Fault`; the engine ray does no pauses, and
            to slow a worker down is for the function itself.
        options: `gpus` (per worker; without it the machine's accelerators are divided); with engine="ray" also
            `address` ("host:port", "auto"; without one Ray is started on this machine alone),
            `compression` ("bf16", "int8", "int4", "int2", "topk"), `shards`, `interval` (seconds between checkpoints of
            the center), `machine_period` (T of a center in every machine's memory, tied to the run's).

    Returns:
        A `Result`. A worker that fails shows in `exit_codes`; the others go on.

    Example:
        >>> import os, easgd
        >>> result = easgd.run(os.getpid, workers=2)  # a function of a module that other processes can import
        >>> result.exit_codes
        [0, 0]
    """
    if "EASGD_RUN" in os.environ:
        raise SettingError('easgd.run was called inside a worker: put it under `if __name__ == "__main__":`')
    check_count("workers", workers, 1, "workers=4")
    check_count("restarts", restarts, 0, "restarts=1")
    check_count("nproc_per_worker", nproc_per_worker, 1, "nproc_per_worker=2")
    check_schedule(schedule)
    target = ["function", fn, tuple(args)]
    folder = None if out is None else Path(out)
    request = RunRequest(
        target, workers, new_id("run"), folder, schedule=schedule, elapsed=elapsed, options=options,
        nproc=nproc_per_worker, history=history,
    )  # fmt: skip
    check_plan(faults, workers, engine, CAN_DO.get(engine, ()))
    module = engine_named(engine)
    clean_stale()
    with module.start_run(request) as backend:
        launcher = Launcher(backend, workers, restarts=restarts, faults=faults)
        launcher.run(observer)
        if out is not None:
            save_centers(launcher.centers, backend.out)
        codes = [launcher.exit_codes.get(rank, -signal.SIGKILL) for rank in range(workers)]
        result = Result(launcher.centers, codes, list(read_records(backend.out)))
    if launcher.signal is not None:
        signal.raise_signal(launcher.signal)  # all is cleared up: now it means what it meant to the caller
    return result
