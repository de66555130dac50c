"""What outlives a simulated process: the cluster's store and the launcher's disk."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from typing import Any

from chaos.scheduler import Scheduler
from easgd import checkpoint


class SimStore:
    """The key-value store on the cluster's head; writing takes a moment, in which the writer may be killed."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.values: dict[str, bytes] = {}

    def put(self, key: str, value: Any) -> None:
        packed = pickle.dumps(value)
        self.scheduler.sleep(self.scheduler.random.expovariate(2000.0))
        self.values[key] = packed
        self.scheduler.sleep(self.scheduler.random.expovariate(2000.0))

    def get(self, key: str) -> Any:
        self.scheduler.point()
        return pickle.loads(self.values[key]) if key in self.values else None


class SimDisk:
    """The module `checkpoint` on a disk that may be full; the files are real ones."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.full = scheduler, False
        self.saved = self.refused = 0

    def save(self, path: Path, state: dict[str, Any]) -> None:
        self.scheduler.sleep(self.scheduler.random.expovariate(50.0))
        if self.full:
            self.refused += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        checkpoint.save(path, state)
        self.saved += 1
        self.scheduler.sleep(self.scheduler.random.expovariate(50.0))

    def load(self, path: Path) -> dict[str, Any]:
        self.scheduler.point()
        return checkpoint.load(path)
