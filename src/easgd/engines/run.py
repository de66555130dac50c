"""`easgd.run`: train a function on several processes of this machine, from a script or a notebook."""

from __future__ import annotations

import os
import pickle
import signal
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from easgd.engines.local.launch import Launcher
from easgd.engines.local.reader import SharedMemoryReader
from easgd.errors import SettingError, unknown
from easgd.launch.checks import check_count, check_schedule, check_workers
from easgd.launch.observer import Observer, ObserverThread
from easgd.launch.result import final_center, save_center
from easgd.launch.run_directory import OwnedRun, clean_stale, new_id
from easgd.records import Breakdown, Record, breakdown, read_records

if TYPE_CHECKING:
    from torch import Tensor

_ENGINES = {
    "local": "",
    "simulate": "it has no processes; use easgd.simulate(…)",
    "ray": "",
}


@dataclass(frozen=True)
class Result:
    """What a run leaves.

    Attributes:
        center: state dict of x̃ (of its average z, where the method keeps one); None if no worker attached.
        exit_codes: of each rank's last incarnation; negative for a signal.
        records: all workers' steps and events, and the launcher's.
    """

    center: dict[str, Tensor] | None
    exit_codes: list[int]
    records: list[Record] = field(repr=False)

    def breakdown(self, worker: int | None = None) -> Breakdown:
        """Where the time went, of one worker or in the mean, as in the paper's table."""
        return breakdown(self.records, worker)


def run(
    fn: Callable[..., object],
    workers: int = 4,
    engine: str = "local",
    args: Sequence[object] = (),
    restarts: int = 0,
    schedule: str | None = None,
    out: str | os.PathLike[str] | None = None,
    watch: Observer | None = None,
    elapsed: float | None = None,
    **cluster: Any,
) -> Result:
    """Call fn(*args) in every one of `workers` processes; `easgd.attach` in it finds its place by itself.

    Args:
        fn: a function that workers can import: defined at the top level of a module, or of the script that is run.
        workers: p.
        engine: "local" for processes of this machine, "ray" for those of a Ray cluster.
        args: its arguments; each worker gets its own copy.
        restarts: how often each worker is started again after a death.
        schedule: "async" (default), "sync" or "round-robin".
        out: folder for logs, records and the center; None keeps them only in the result.
        watch: is shown the center ten times a second, and when all workers have ended.
        elapsed: seconds that this run has had before: its records go on from there in `out`.
        cluster: with engine="ray": `address` ("host:port", "auto"; without one Ray is started on this machine alone),
            `compression` ("bf16", "int8"), `shards`, `interval` (seconds between checkpoints of the center),
            `gpus` (per worker).

    Returns:
        A `Result`. A worker that fails shows in `exit_codes`; the others go on.
    """
    _check(workers, engine, restarts, schedule)
    if engine == "ray":
        from easgd.engines.ray.run import run_on_ray

        return run_on_ray(
            fn, workers, args, restarts, schedule, None if out is None else Path(out), watch, elapsed, cluster
        )
    if cluster:
        raise SettingError(f"{next(iter(cluster))} = {next(iter(cluster.values()))}: only engine='ray' takes it")
    clean_stale()
    with _parcel(fn, args) as parcel:
        directory = OwnedRun(
            new_id("run"), workers, None if out is None else Path(out), schedule=schedule, elapsed=elapsed or 0.0
        )
        try:
            launcher = Launcher(
                directory, ["function", str(parcel.fileno())], workers, restarts=restarts,
                inherit=[parcel.fileno()], resumed=elapsed is not None,
            )  # fmt: skip
            with ObserverThread(watch, SharedMemoryReader(directory.path)):
                launcher.run()
            center = final_center(directory.path)
            if center is not None and out is not None:
                save_center(center, directory.out)
            codes = [launcher.exit_codes.get(rank, -signal.SIGKILL) for rank in range(workers)]
            result = Result(center, codes, list(read_records(directory.out)))
        finally:
            directory.close()
    if launcher.signal is not None:
        signal.raise_signal(launcher.signal)  # all is cleared up: now it means what it meant to the caller
    return result


def _check(workers: int, engine: str, restarts: int, schedule: str | None) -> None:
    if "EASGD_RUN" in os.environ:
        raise SettingError('easgd.run was called inside a worker: put it under `if __name__ == "__main__":`')
    if engine not in _ENGINES:
        raise unknown("engine", engine, _ENGINES)
    if _ENGINES[engine]:
        raise SettingError(f"engine = {engine!r}: {_ENGINES[engine]}")
    check_workers("workers", workers, "workers=4")
    check_count("restarts", restarts, 0, "restarts=1")
    check_schedule(schedule)


def _parcel(fn: Callable[..., object], args: Sequence[object]) -> IO[bytes]:
    """Pack the function for the workers, with what multiprocessing tells a spawned child about the main module."""
    from multiprocessing import spawn

    where: dict[str, Any] = spawn.get_preparation_data("easgd-worker")
    where.pop("authkey")  # for connections between the processes; there are none
    if not os.path.exists(where.get("init_main_from_path", "")):
        where.pop("init_main_from_path", None)  # "<stdin>" is not a file
    prompt = not {"init_main_from_name", "init_main_from_path"} & where.keys()
    if prompt and getattr(fn, "__module__", None) == "__main__":
        raise SettingError(
            f"fn = {_name(fn)}: workers cannot import a function from a notebook or a prompt; "
            f"write it to a file (`%%writefile train.py`) and `from train import {_name(fn)}`"
        )
    try:
        packed = pickle.dumps(where) + pickle.dumps((fn, tuple(args)))
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError) as error:
        raise SettingError(
            f"fn = {_name(fn)}: it cannot be sent to a worker ({error}); "
            "use a function defined at the top level of a module, and plain data in args"
        ) from error
    file = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
    file.write(packed)
    file.flush()
    return file


def _name(fn: object) -> str:
    return getattr(fn, "__name__", repr(fn))
