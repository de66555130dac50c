"""What a run on a cluster can be told, and the refusal of what it cannot. Nothing here needs Ray."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from easgd.errors import refuse, unknown
from easgd.launch.checks import check_count

COMPRESSIONS = ("bf16", "int8")


@dataclass(frozen=True)
class Settings:
    """The settings of a run on a cluster.

    Attributes:
        restarts: how often each worker is started again after a death.
        grace: seconds between the first Ctrl-C and the end.
        shards: processes that share the center; None for one per node, 8 at most.
        interval: seconds between two checkpoints of the center: what its loss can cost.
        compression: of messages: "bf16", "int8" or None.
        gpus: accelerators that Ray reserves for each worker.
        center_restarts: how often Ray restarts a shard; −1 for always.
        sockets: whether messages go by sockets of their own where they can, beside Ray.
    """

    restarts: int = 0
    grace: float = 10.0
    shards: int | None = None
    interval: float = 30.0
    compression: str | None = None
    gpus: float = 0.0
    center_restarts: int = -1
    sockets: bool = True

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.shards is not None:
            check_count("shards", self.shards, 1, "shards=2")
        if not self.interval > 0:
            raise refuse("interval", self.interval, "it is a number of seconds > 0", "write interval=30")
        if self.compression is not None and self.compression not in COMPRESSIONS:
            raise unknown("compression", self.compression, COMPRESSIONS)
        if not self.gpus >= 0:
            raise refuse("gpus", self.gpus, "it is a number ≥ 0", "write gpus=1")

    @staticmethod
    def of(options: Mapping[str, Any]) -> Settings:
        """From keywords; an unknown one is refused by name."""
        known = [field.name for field in dataclasses.fields(Settings)]
        for name in options:
            if name not in known:
                raise unknown("setting", name, known)
        return Settings(**options)
