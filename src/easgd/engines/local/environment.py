"""The environment of a worker process: its rank, and where its run is."""

from __future__ import annotations

import os

from easgd.kernels import allocator
from easgd.launch.run_directory import Run
from easgd.launch.terminal import terminal_setting
from easgd.machine import usable_cores
from easgd.worker.context import TORCHRUN


def worker_environment(run: Run, rank: int, incarnation: int) -> dict[str, str]:
    """Return the whole environment of one worker; what the user set stays, but for torchrun's names."""
    # A rank beyond those launched has joined: the run it finds is at least as large as its own place in it.
    workers = max(run.description.workers, rank + 1)
    processes = workers * run.description.nproc
    own = {
        "EASGD_RUN": f"local:{run.path}",
        "EASGD_RANK": rank,
        "EASGD_WORKERS": workers,
        "EASGD_INCARNATION": incarnation,
        "EASGD_OUT": run.out,
        "EASGD_ORIGIN": run.description.origin,
        "EASGD_ELAPSED": run.description.elapsed,
    }
    own |= terminal_setting()
    if run.description.history:
        own["EASGD_HISTORY"] = run.description.history
    inherited = {
        name: value for name, value in os.environ.items() if name not in (*TORCHRUN, "EASGD_SCHEDULE", "EASGD_HISTORY")
    }
    environment = {"OMP_NUM_THREADS": str(max(1, usable_cores() // processes)), **allocator.ENVIRONMENT, **inherited}
    environment.update({name: str(value) for name, value in own.items()})
    if run.description.schedule is not None:
        environment["EASGD_SCHEDULE"] = run.description.schedule
    return environment
