"""Which ranks of a run are held, and by how many incarnations each has been held so far.

One file in the run directory, eight bytes a rank: incarnations started, incarnations that ended and were recorded. A
record lock, number `rank` of the file, is held for each rank in use. The ranks of a killed launcher are free at once;
that they were lost and not given back shows in the two numbers.
"""

from __future__ import annotations

import os
import struct
from itertools import count
from pathlib import Path

from easgd.errors import SettingError
from easgd.locks import RecordLocks

_ENTRY = struct.Struct("<II")


class Ranks:
    """The ranks of one run. A process has one object per run, because record locks belong to the process."""

    def __init__(self, run: Path) -> None:
        try:
            self._locks = RecordLocks.of(run / "ranks")
        except FileNotFoundError:
            raise SettingError(f"run {run.name!r} has just ended; `easgd launch --list` shows live runs") from None
        self.held: set[int] = set()

    def _read(self, rank: int) -> tuple[int, int]:
        entry = os.pread(self._locks.file, _ENTRY.size, rank * _ENTRY.size)
        started, ended = _ENTRY.unpack(entry.ljust(_ENTRY.size, b"\0"))
        return started, ended

    def _write(self, rank: int, started: int, ended: int) -> None:
        os.pwrite(self._locks.file, _ENTRY.pack(started, ended), rank * _ENTRY.size)

    def take(self) -> int:
        """Hold the lowest free rank. A lost one is not free before its run's owner has recorded the loss."""
        for rank in count():
            if rank in self.held or not self._locks.try_take(rank):
                continue
            started, ended = self._read(rank)
            if started == ended:
                self.held.add(rank)
                return rank
            self._locks.release(rank)
        raise AssertionError("unreachable: count() does not end")

    def start(self, rank: int) -> int:
        """Return the number of a new incarnation of a held rank."""
        started, ended = self._read(rank)
        self._write(rank, started + 1, ended)
        return started

    def end(self, rank: int) -> None:
        """Note that the present incarnation of a held rank ended and was recorded."""
        started, _ = self._read(rank)
        self._write(rank, started, started)

    def release(self, rank: int) -> None:
        """Give a rank back: another launcher may take it."""
        self.held.discard(rank)
        self._locks.release(rank)

    def lost(self) -> list[tuple[int, int]]:
        """Return (rank, incarnation) of workers whose launcher died before it could record their end; note them."""
        found = []
        for rank in range(os.fstat(self._locks.file).st_size // _ENTRY.size):
            if rank in self.held or not self._locks.try_take(rank):
                continue
            started, ended = self._read(rank)
            if started != ended:
                found.append((rank, started - 1))
                self._write(rank, started, started)
            self._locks.release(rank)
        return found

    def close(self) -> None:
        """Give all ranks back."""
        for rank in list(self.held):
            self.release(rank)
