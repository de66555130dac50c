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
        run: the folder of the run's shared memory; None when alone.
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

    @staticmethod
    def from_environment(env: Mapping[str, str] = os.environ) -> Place:
        """Read RANK, WORLD_SIZE and the EASGD_* variables; without EASGD_RUN a worker is alone."""
        if "EASGD_RUN" not in env:
            return Place()
        try:
            rank, workers = int(env["RANK"]), int(env["WORLD_SIZE"])
        except (KeyError, ValueError) as error:
            raise SettingError(f"EASGD_RUN is set without RANK and WORLD_SIZE ({error}); use `easgd launch`") from None
        schedule = env.get("EASGD_SCHEDULE")
        if schedule is not None and schedule not in SCHEDULES:
            raise unknown("schedule", schedule, SCHEDULES)
        return Place(
            rank=rank,
            workers=workers,
            incarnation=int(env.get("EASGD_INCARNATION", "0")),
            run=Path(env["EASGD_RUN"]),
            out=Path(env["EASGD_OUT"]) if env.get("EASGD_OUT") else None,
            schedule=schedule,
            origin=float(env["EASGD_ORIGIN"]) if env.get("EASGD_ORIGIN") else None,
            elapsed=float(env.get("EASGD_ELAPSED", "0")),
        )
