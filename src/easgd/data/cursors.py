"""The position of each of the k loaders in the data set, shared by all workers without a server.

A loader is only a cursor: `take` returns the next chunk to the worker that asks first and advances the cursor. At the
end of the file the loader starts again at a random position near the beginning (supplement, "Data prefetching"). A
cursor is one 64-bit word, cycle · 2⁴⁰ + position: a worker that is killed leaves it either before or after its chunk.

`SharedCursors` keeps the words in a small memory-mapped file under the record locks of `easgd.locks`, which the kernel
releases when their holder is killed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from easgd.data.seeds import CURSORS
from easgd.errors import SettingError, refuse
from easgd.locks import RecordLocks

_SHIFT = 40
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Ring:
    """One loader's part of the data set: images first..first+size−1. Its first pass begins at `first + start`."""

    first: int
    size: int
    start: int


@dataclass(frozen=True)
class Chunk:
    """Images first..last−1 of the data set, taken from `loader` in its pass number `cycle`."""

    loader: int
    cycle: int
    first: int
    last: int


class Cursors:
    """The cursors of one process, for many simulated workers or for a single one.

    >>> cursors = Cursors([Ring(first=0, size=250, start=0)], chunk=100, batch=32, seed=0)
    >>> [cursors.take(0).last for _ in range(3)]
    [100, 200, 250]
    """

    def __init__(self, rings: list[Ring], chunk: int, batch: int, seed: int) -> None:
        self.rings, self.chunk, self.batch, self.seed = rings, chunk, batch, seed
        self._words: Words = np.array([ring.start for ring in rings], np.uint64)
        self._threads = threading.Lock()

    @contextlib.contextmanager
    def _locked(self, loader: int) -> Iterator[None]:
        with self._threads:
            yield

    def take(self, loader: int) -> Chunk:
        """Return the loader's next chunk and advance. The last chunk of a pass is short if the size does not divide."""
        ring = self.rings[loader]
        with self._locked(loader):
            cycle, start = divmod(int(self._words[loader]), 1 << _SHIFT)
            if start >= ring.size:
                cycle, start = cycle + 1, self._restart(loader, cycle + 1)
            stop = min(start + self.chunk, ring.size)
            self._words[loader] = cycle << _SHIFT | stop
        return Chunk(loader, cycle, ring.first + start, ring.first + stop)

    def _restart(self, loader: int, cycle: int) -> int:
        # Uniform in [0, s], s being the number of images modulo the batch size. A function of (seed, loader, cycle)
        # alone: a generator would have a state that all processes must share.
        size = self.rings[loader].size
        address = int(np.random.default_rng([self.seed, CURSORS, loader, cycle]).integers(size % self.batch + 1))
        return min(address, size - 1)  # with less than a batch of images, s is the end of the file

    def snapshot(self) -> npt.NDArray[np.int64]:
        """Return a copy of all cursors, for a checkpoint."""
        return self._words.astype(np.int64)

    def restore(self, words: npt.NDArray[np.int64]) -> None:
        """Set all cursors to a snapshot."""
        with self._threads:
            self._words[:] = words.astype(np.uint64)


class SharedCursors(Cursors):
    """The same cursors in the file `path`, for all processes of a machine. The first process creates it.

    Raises a `SettingError` if the file belongs to a run with other data or settings.
    """

    # magic, format, batch, chunk, seed, number of loaders; the rings and the words follow
    _PREFIX = struct.Struct("<8s8sQQqQ")
    _MAGIC = b"EASGDCUR"

    def __init__(self, rings: list[Ring], chunk: int, batch: int, seed: int, path: str | os.PathLike[str]) -> None:
        super().__init__(rings, chunk, batch, seed)
        self.path = Path(path)
        plan = np.array([(ring.first, ring.size, ring.start) for ring in rings], "<u8").tobytes()
        head = self._PREFIX.pack(b"\0" * 8, b"1".ljust(8), batch, chunk, seed, len(rings))[8:] + plan
        words = self._words.astype("<u8").tobytes()
        self._locks, file = _mapped(self.path, 8 + len(head) + len(words))
        with self._locks.threads, self._locks.hold(0):
            # The magic is written last: if this process is killed before, the next one writes everything again.
            if file[:8] != self._MAGIC:
                file[8:] = head + words
                file[:8] = self._MAGIC
        if file[8 : 8 + len(head)] != head:
            raise _foreign(self.path)
        self._words = np.frombuffer(file, np.uint64, len(rings), 8 + len(head))

    @contextlib.contextmanager
    def _locked(self, loader: int) -> Iterator[None]:
        # One lock per loader: workers at different loaders do not wait for each other. Lock 0 is for creating the file.
        with self._locks.threads, self._locks.hold(1 + loader):
            yield

    def restore(self, words: npt.NDArray[np.int64]) -> None:
        """Advance each cursor to a snapshot. Workers restore one after another; the furthest position is kept."""
        for loader, word in enumerate(words):
            with self._locked(loader):
                self._words[loader] = max(int(self._words[loader]), int(word))


# A map has a descriptor of its own, and closing any descriptor of a file drops all locks that this process holds on it.
# So a process maps each file once and never closes the map.
_MAPS: dict[RecordLocks, mmap.mmap] = {}


def _mapped(path: Path, size: int) -> tuple[RecordLocks, mmap.mmap]:
    """Return a cursor file's locks and its map; a file that does not exist is created with `size` zero bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    locks = RecordLocks.of(path)
    with locks.threads, locks.hold(0):
        if os.fstat(locks.file).st_size == 0:
            os.ftruncate(locks.file, size)
        if os.fstat(locks.file).st_size != size:
            raise _foreign(path)
        if locks not in _MAPS:
            _MAPS[locks] = mmap.mmap(locks.file, size)
    return locks, _MAPS[locks]


def _foreign(path: Path) -> SettingError:
    return refuse("cursor file", path, "it belongs to a run with other data or settings", "use another path")
