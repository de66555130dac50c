"""The center of a run, seen by a process that takes no part in it: snapshots, the master's clock, who is there."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from easgd.center.layout import Layout
from easgd.engines.local.control import CENTERS, LOCKS, Control
from easgd.engines.local.segment import Segment
from easgd.engines.local.snapshot_lock import SnapshotLock
from easgd.locks import RecordLocks
from easgd.methods import Slots
from easgd.runtime import time
from easgd.worker.context import DEFAULT_CENTER

READ_SECONDS, PAUSE = 60.0, 0.002


class SharedMemoryReader:
    """Reads the shared memory of a run; it is there as soon as the first worker has laid it out."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._segment: Segment | None = None

    @property
    def segment(self) -> Segment | None:
        """The run's memory, once it exists."""
        if self._segment is None and Control.exists(self.folder):
            self._segment = Segment(self.folder)
        return self._segment

    @property
    def layout(self) -> Layout:
        """What the vectors are made of."""
        assert self.segment is not None
        return self.segment.layout

    @property
    def version(self) -> int:
        """The master's clock; 0 before the first worker came."""
        return self.segment.version if self.segment else 0

    @property
    def clocks(self) -> list[list[int]]:
        """The clock of each fragment; see `CenterView`."""
        return [self.segment.clock(f) for f in range(len(self.segment.fragments))] if self.segment else []

    def joined(self) -> list[int]:
        """The ranks that are in the run now."""
        return self.segment.control.joined() if self.segment else []

    def snapshot(self, patience: float = 0.05) -> Slots | None:
        """A copy of all the center's vectors between two exchanges; None if there is no such moment within `patience`.

        A worker that was stopped in the middle of an exchange keeps the lock; an observer must not make the others wait
        for it too.
        """
        if (segment := self.segment) is None:
            return None
        lock = SnapshotLock(RecordLocks.of(self.folder / LOCKS), segment.control.words)
        with lock.closed(patience) as alone:
            return {name: slot.clone() for name, slot in segment.slots.items()} if alone else None

    def named(self, slots: Slots) -> dict[str, Tensor]:
        """What is measured of a snapshot, z where there is one, else x̃, under the model's names."""
        return self.layout.split(slots.get("average", slots["x"]))


def read(address: str, name: str) -> tuple[Layout, dict[str, Tensor]]:
    """Read a center of the run in folder `address`, between two exchanges."""
    reader = SharedMemoryReader(folder_of(Path(address), name))
    while (slots := reader.snapshot(patience=READ_SECONDS)) is None:
        time.sleep(PAUSE)  # its first worker is about to lay it out
    return reader.layout, reader.named(slots)


def folder_of(run: Path, center: str) -> Path:
    """The folder of one of a run's centers."""
    return run if center == DEFAULT_CENTER else run / CENTERS / center
