"""Where a worker finds itself: alone, or with a rank in a run, as the launcher says in the environment.

Only `EASGD_*` variables are read. torchrun's names (RANK, WORLD_SIZE, …) are set only where a worker is a group of
ranks, and describe that group. Else a script that knows them believes that it is alone, which it is: it shares no
process group with the other workers.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from easgd.errors import SettingError, unknown

SCHEDULES = ("async", "sync", "round-robin")
DEFAULT_CENTER = "center"

TORCHRUN = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
)  # fmt: skip
"""What torchrun tells its processes; a worker must not inherit it from whoever launched the run."""


@dataclass(frozen=True)
class RunContext:
    """One worker's place in its run.

    Attributes:
        rank: from 0.
        workers: how many were launched.
        incarnation: how often this rank has been started before.
        run: where the run's center lives, as `scheme:address` (see `easgd.center.transports`); None when alone.
        center: which of the run's centers; one suffices unless a script trains several models.
        node: the name of the machine, for the records of a cluster's run.
        compression: of the messages, where the launcher says so.
        guard: the bound on a message's distance, where the launcher says so (see `easgd.attach`).
        out: the folder for records; None for none.
        schedule: "async", "sync" or "round-robin"; None leaves it to the method.
        origin: the run's first moment on the machine's monotonic clock, so that all records count from one zero.
        elapsed: seconds of training that a resumed run has behind it.
        nproc: ranks of this worker, which is a group if there are several.
        member: this process's rank in its group.
        history: the folder where exchanges are written down; None where nobody asked for it.
        machine_period: T of a center in every machine's memory, on a cluster; None where there is none.
    """

    rank: int = 0
    workers: int = 1
    incarnation: int = 0
    run: str | None = None
    out: Path | None = None
    schedule: str | None = None
    origin: float | None = None
    elapsed: float = 0.0
    center: str = DEFAULT_CENTER
    node: str = ""
    compression: str | None = None
    nproc: int = 1
    member: int = 0
    guard: float | None = None
    history: Path | None = None
    machine_period: int | None = None

    @property
    def alone(self) -> bool:
        """Whether there is no run around."""
        return self.run is None

    @property
    def shared_folder(self) -> Path | None:
        """The folder of the run's shared memory, where all workers are processes of this machine."""
        local = self.run is not None and self.run.startswith("local:")
        return Path(self.run.removeprefix("local:")) if local and self.run is not None else None

    @staticmethod
    def from_environment(env: Mapping[str, str] = os.environ) -> RunContext:
        """Read the EASGD_* variables; without EASGD_RUN a worker is alone."""
        run = env.get("EASGD_RUN")
        if run is None:
            return RunContext()
        try:
            rank, workers = int(env["EASGD_RANK"]), int(env["EASGD_WORKERS"])
        except (KeyError, ValueError) as error:
            raise SettingError(
                f"EASGD_RUN is set without EASGD_RANK and EASGD_WORKERS ({error}); use `easgd launch`"
            ) from None
        schedule = env.get("EASGD_SCHEDULE")
        if schedule is not None and schedule not in SCHEDULES:
            raise unknown("schedule", schedule, SCHEDULES)
        member = int(env.get("EASGD_MEMBER", "0"))
        return RunContext(
            rank=rank,
            workers=workers,
            incarnation=int(env.get("EASGD_INCARNATION", "0")),
            run=run if ":" in run else f"local:{run}",
            # A group is one worker, and its first rank records.
            out=Path(env["EASGD_OUT"]) if env.get("EASGD_OUT") and member == 0 else None,
            schedule=schedule,
            origin=float(env["EASGD_ORIGIN"]) if env.get("EASGD_ORIGIN") else None,
            elapsed=float(env.get("EASGD_ELAPSED", "0")),
            center=env.get("EASGD_CENTER", DEFAULT_CENTER),
            node=env.get("EASGD_NODE", ""),
            compression=env.get("EASGD_COMPRESSION") or None,
            nproc=int(env.get("EASGD_NPROC", "1")),
            member=member,
            guard=float(env["EASGD_GUARD"]) if env.get("EASGD_GUARD") else None,
            history=Path(env["EASGD_HISTORY"]) if env.get("EASGD_HISTORY") else None,
            machine_period=int(env["EASGD_MACHINE_PERIOD"]) if env.get("EASGD_MACHINE_PERIOD") else None,
        )
