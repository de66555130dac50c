"""The state of a run while it goes on, from its records alone; the same for every engine."""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, field
from typing import Any

from easgd.records import Event, Record, Step


@dataclass
class WorkerStatus:
    """One worker, according to its last records."""

    clock: int = 0
    time: float = 0.0
    distance: float | None = None
    staleness: int | None = None
    compute: float = 0.0
    data: float = 0.0
    communication: float = 0.0
    waiting: float = 0.0
    state: str = ""

    def take(self, step: Step) -> None:
        self.clock, self.time = step.clock + 1, step.time
        self.distance = self.distance if step.distance is None else step.distance
        self.staleness = self.staleness if step.staleness is None else step.staleness
        for name in ("compute", "data", "communication", "waiting"):
            setattr(self, name, getattr(self, name) + getattr(step, name))


@dataclass
class Monitor:
    """Sums over all workers, and a row for each."""

    steps: int = 0
    bytes: int = 0
    time: float = 0.0
    workers: dict[int, WorkerStatus] = field(default_factory=dict)
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=100))
    events: deque[str] = field(default_factory=lambda: deque(maxlen=5))

    def take(self, record: Record) -> None:
        if isinstance(record, Event):
            worker = "" if record.worker is None else f" worker {record.worker}"
            self.events.append(f"{record.time:.1f} s:{worker} {record.event} {record.detail}".rstrip())
            if record.worker is not None and record.event in ("death", "leave", "join", "restart", "stopped"):
                self.workers.setdefault(record.worker, WorkerStatus()).state = record.event
            return
        self.steps += 1
        self.bytes += record.bytes
        self.time = max(self.time, record.time)
        self.workers.setdefault(record.worker, WorkerStatus()).take(record)
        if record.loss is not None:
            self.losses.append(record.loss)

    @property
    def loss(self) -> float | None:
        """Mean of the last online training losses."""
        return sum(self.losses) / len(self.losses) if self.losses else None

    def state_dict(self) -> dict[str, Any]:
        rows = {rank: asdict(seen) for rank, seen in self.workers.items()}
        return {"steps": self.steps, "bytes": self.bytes, "time": self.time, "workers": rows, "losses": [*self.losses]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps, self.bytes, self.time = state["steps"], state["bytes"], state["time"]
        self.workers = {int(rank): WorkerStatus(**row) for rank, row in state["workers"].items()}
        self.losses = deque(state["losses"], maxlen=100)
