"""What a worker finds in its environment: torchrun's names, and where its run is."""

from __future__ import annotations

import os

from easgd.engines.local.rundir import Run
from easgd.kernels import allocator


def cores() -> int:
    """Return the number of processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def worker_environment(run: Run, rank: int, incarnation: int) -> dict[str, str]:
    """Return the whole environment of one worker; what the user set stays."""
    # A rank beyond those launched has joined: the world it finds is at least as large as its own place in it.
    world = max(run.description.workers, rank + 1)
    own = {
        "RANK": rank,
        "WORLD_SIZE": world,
        "LOCAL_RANK": rank,
        "LOCAL_WORLD_SIZE": world,
        "EASGD_RUN": run.path,
        "EASGD_INCARNATION": incarnation,
        "EASGD_OUT": run.out,
        "EASGD_ORIGIN": run.description.origin,
        "EASGD_ELAPSED": run.description.elapsed,
    }
    environment = {"OMP_NUM_THREADS": str(max(1, cores() // world)), **allocator.ENVIRONMENT, **os.environ}
    environment.update({name: str(value) for name, value in own.items()})
    environment.pop("EASGD_SCHEDULE", None)
    if run.description.schedule is not None:
        environment["EASGD_SCHEDULE"] = run.description.schedule
    return environment
