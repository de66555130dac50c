"""Where a worker finds itself: alone, or with a rank in a run, as the launcher says in the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from easgd.errors import SettingError, unknown

SCHEDULES = ("async", "sync", "round-robin")


@dataclass(frozen=True)
class Place:
    """A worker's place.

    Attributes:
        rank: from 0.
        workers: how many were launched.
        incarnation: how often this rank has been started before.
        run: the folder of the run's shared memory; None on a cluster and when alone.
        cluster: the run's name on a Ray cluster; None on one machine and when alone.
        center: which of the cluster run's centers; one suffices unless a script trains several models.
        node: the name of the machine, for the records of a cluster's run.
        compression: of the messages, where the launcher says so.
        out: the folder for records; None for none.
        schedule: "async", "sync" or "round-robin"; None leaves it to the method.
        origin: the run's first moment on the machine's monotonic clock, so that all records count from one zero.
        elapsed: seconds of training that a resumed run has behind it.
    """

    rank: int = 0
    workers: int = 1
    incarnation: int = 0
    run: Path | None = None
    out: Path | None = None
    schedule: str | None = None
    origin: float | None = None
    elapsed: float = 0.0
    cluster: str | None = None
    center: str = "center"
    node: str = ""
    compression: str | None = None

    @property
    def alone(self) -> bool:
        """Whether there is no run around."""
        return self.run is None and self.cluster is None

    @staticmethod
    def from_environment(env: Mapping[str, str] = os.environ) -> Place:
        """Read RANK, WORLD_SIZE and the EASGD_* variables; without EASGD_RUN or EASGD_RAY a worker is alone."""
        where = "EASGD_RUN" if "EASGD_RUN" in env else "EASGD_RAY"
        if where not in env:
            return Place()
        try:
            rank, workers = int(env["RANK"]), int(env["WORLD_SIZE"])
        except (KeyError, ValueError) as error:
            raise SettingError(f"{where} is set without RANK and WORLD_SIZE ({error}); use `easgd launch`") from None
        schedule = env.get("EASGD_SCHEDULE")
        if schedule is not None and schedule not in SCHEDULES:
            raise unknown("schedule", schedule, SCHEDULES)
        return Place(
            rank=rank,
            workers=workers,
            incarnation=int(env.get("EASGD_INCARNATION", "0")),
            run=Path(env["EASGD_RUN"]) if where == "EASGD_RUN" else None,
            out=Path(env["EASGD_OUT"]) if env.get("EASGD_OUT") else None,
            schedule=schedule,
            origin=float(env["EASGD_ORIGIN"]) if env.get("EASGD_ORIGIN") else None,
            elapsed=float(env.get("EASGD_ELAPSED", "0")),
            cluster=env["EASGD_RAY"] if where == "EASGD_RAY" else None,
            center=env.get("EASGD_CENTER", "center"),
            node=env.get("EASGD_NODE", ""),
            compression=env.get("EASGD_COMPRESSION") or None,
        )
