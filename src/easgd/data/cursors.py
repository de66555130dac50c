"""Where each of the k loaders stands in its file, shared by all workers without a server.

A loader is nothing but a cursor here: `take` hands the next chunk to whoever asks first and moves on; at the end of the
file it starts again at a random place near the beginning (supplement, "Data prefetching"). A cursor is one 64-bit word,
cycle · 2⁴⁰ + position: a worker killed at any instruction leaves it before or after its chunk, never in between.

`SharedCursors` keeps the words in a small mapped file under kernel record locks, which are freed when their holder is
killed. Such locks belong to the process, so threads need a lock besides; and closing any descriptor of the file would
drop them, so a process opens each file once.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from easgd.errors import SettingError, refuse

_SHIFT = 40
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Ring:
    """One loader's part of the data set: images first..first+size−1, begun at `start` (relative to `first`)."""

    first: int
    size: int
    start: int


@dataclass(frozen=True)
class Chunk:
    """Images first..last−1 of the data set, which `loader` hands out in its `cycle`-th pass."""

    loader: int
    cycle: int
    first: int
    last: int


class Cursors:
    """The cursors of one process: many virtual workers, or one worker alone."""

    def __init__(self, rings: list[Ring], chunk: int, batch: int, seed: int) -> None:
        self.rings, self.chunk, self.batch, self.seed = rings, chunk, batch, seed
        self._words: Words = np.array([ring.start for ring in rings], np.uint64)
        self._threads = threading.Lock()

    @contextlib.contextmanager
    def _locked(self, loader: int) -> Iterator[None]:
        with self._threads:
            yield

    def take(self, loader: int) -> Chunk:
        """Hand out the loader's next chunk. The last one of a pass is short if the chunk size does not divide."""
        ring = self.rings[loader]
        with self._locked(loader):
            cycle, start = divmod(int(self._words[loader]), 1 << _SHIFT)
            if start >= ring.size:
                cycle, start = cycle + 1, self._restart(loader, cycle + 1)
            stop = min(start + self.chunk, ring.size)
            self._words[loader] = cycle << _SHIFT | stop
        return Chunk(loader, cycle, ring.first + start, ring.first + stop)

    def _restart(self, loader: int, cycle: int) -> int:
        # Uniform in [0, s], where s is the number of images modulo the size of a batch. The number depends on (seed,
        # loader, cycle) alone, so there is no generator whose state would have to be shared.
        size = self.rings[loader].size
        address = int(np.random.default_rng([self.seed, 1, loader, cycle]).integers(size % self.batch + 1))
        return min(address, size - 1)  # s is the end of the file itself if there is less than a batch

    def snapshot(self) -> npt.NDArray[np.int64]:
        """Return a copy of all cursors, for a checkpoint."""
        return self._words.astype(np.int64)

    def restore(self, words: npt.NDArray[np.int64]) -> None:
        """Set all cursors to a snapshot."""
        with self._threads:
            self._words[:] = words.astype(np.uint64)


class SharedCursors(Cursors):
    """The same cursors, in the file `path`, for all the processes of a machine. The first to come creates it."""

    # magic (written last), format, batch, chunk, seed, loaders; the rings and the words follow
    _PREFIX = struct.Struct("<8s8sQQqQ")
    _MAGIC = b"EASGDCUR"

    def __init__(self, rings: list[Ring], chunk: int, batch: int, seed: int, path: str | os.PathLike[str]) -> None:
        super().__init__(rings, chunk, batch, seed)
        self.path = Path(path)
        plan = np.array([(ring.first, ring.size, ring.start) for ring in rings], "<u8").tobytes()
        head = self._PREFIX.pack(b"\0" * 8, b"1".ljust(8), batch, chunk, seed, len(rings))[8:] + plan
        self._file = _MappedFile.of(self.path, 8 + len(head) + 8 * len(rings))
        self._threads = self._file.threads
        self._file.create(self._MAGIC, head, self._words.astype("<u8").tobytes())
        if self._file.map[8 : 8 + len(head)] != head:
            raise _foreign(self.path)
        self._words = np.frombuffer(self._file.map, np.uint64, len(rings), 8 + len(head))

    @contextlib.contextmanager
    def _locked(self, loader: int) -> Iterator[None]:
        # One byte per loader is locked, so that workers at different loaders do not wait for each other.
        with self._threads, self._file.record(1 + loader):
            yield

    def restore(self, words: npt.NDArray[np.int64]) -> None:
        """Move each cursor forward to a snapshot. Workers restore in any order, each its own: the furthest wins."""
        for loader, word in enumerate(words):
            with self._locked(loader):
                self._words[loader] = max(int(self._words[loader]), int(word))


class _MappedFile:
    """One file, opened once in this process, mapped and locked by records."""

    _opened: dict[Path, _MappedFile] = {}  # noqa: RUF012 - shared on purpose, see the module's text
    _guard = threading.Lock()

    def __init__(self, path: Path, size: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self.threads = threading.Lock()
        with self.record(0):
            present = os.fstat(self.descriptor).st_size
            if present == 0:
                os.ftruncate(self.descriptor, size)
        if present not in (0, size):
            os.close(self.descriptor)
            raise _foreign(path)
        self.map = mmap.mmap(self.descriptor, size)

    @classmethod
    def of(cls, path: Path, size: int) -> _MappedFile:
        """Return the file, opening it if this process has not yet (a deleted and re-created file counts as new)."""
        with cls._guard:
            held = cls._opened.get(path.resolve())
            if held is None or not held._is(path, size):
                held = cls._opened[path.resolve()] = cls(path, size)
            return held

    def _is(self, path: Path, size: int) -> bool:
        mine = os.fstat(self.descriptor)
        try:
            there = os.stat(path)
        except FileNotFoundError:
            return False
        same = (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)
        if same and len(self.map) != size:
            raise _foreign(path)
        return same

    @contextlib.contextmanager
    def record(self, byte: int) -> Iterator[None]:
        """Hold the lock of one byte of the file."""
        fcntl.lockf(self.descriptor, fcntl.LOCK_EX, 1, byte)
        try:
            yield
        finally:
            fcntl.lockf(self.descriptor, fcntl.LOCK_UN, 1, byte)

    def create(self, magic: bytes, head: bytes, words: bytes) -> None:
        """Write the contents unless they are there. The magic goes last: without it, the next process writes again."""
        with self.threads, self.record(0):
            if self.map[:8] != magic:
                self.map[8:] = head + words
                self.map[:8] = magic


def _foreign(path: Path) -> SettingError:
    return refuse("cursor file", path, "it belongs to a run with other data or settings", "use another path")
