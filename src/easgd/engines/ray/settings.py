"""The settings of a run on a cluster, checked."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from easgd.compress import NAMES
from easgd.errors import refuse, unknown
from easgd.launch.checks import check_count, check_gpus


@dataclass(frozen=True)
class Settings:
    """What `easgd.run(…, engine="ray")` and `easgd launch --ray` take beside the common settings.

    Attributes:
        address: "host:port" of the cluster's head, "auto", or None (as "local") to start Ray on this machine alone.
        shards: processes that share the center; None for one per node, 8 at most.
        interval: seconds between two checkpoints of the center: what its loss can cost.
        compression: of messages, one of `easgd.compress.NAMES`, or None. A worker's `attach` may choose another.
        gpus: accelerators that Ray reserves for each worker.
        center_restarts: how often Ray restarts a shard; −1 for always.
        sockets: whether messages go by sockets of their own where they can, not through Ray.
        machine_period: T of a center in every machine's memory (`easgd.center.levels`); None for none.
    """

    address: str | None = None
    shards: int | None = None
    interval: float = 30.0
    compression: str | None = None
    gpus: float = 0.0
    center_restarts: int = -1
    sockets: bool = True
    machine_period: int | None = None

    def __post_init__(self) -> None:
        if self.shards is not None:
            check_count("shards", self.shards, 1, "shards=2")
        if self.machine_period is not None:
            check_count("machine_period", self.machine_period, 1, "machine_period=1")
        if not self.interval > 0:
            raise refuse("interval", self.interval, "it is a number of seconds > 0", "write interval=30")
        if self.compression is not None and self.compression not in NAMES:
            raise unknown("compression", self.compression, NAMES)
        check_gpus(self.gpus)

    @staticmethod
    def of(options: Mapping[str, Any]) -> Settings:
        """Read keywords; an unknown one is refused by name."""
        known = [field.name for field in dataclasses.fields(Settings)]
        for name in options:
            if name not in known:
                raise unknown("setting", name, known)
        return Settings(**options)
