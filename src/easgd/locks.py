"""Kernel record locks on one file: they fall open when their holder is killed, which no lock in memory does.

`fcntl` locks belong to the process, and closing *any* descriptor of the file drops them all. So a process opens the
lock file once, here, and threads of one process, which do not exclude each other, take turns by a lock of their own.
"""

from __future__ import annotations

import fcntl
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import RLock

from easgd.runtime import threading, time

SPIN_SECONDS = 2e-3
Key = tuple[int, int]
"""Device and inode of a lock file."""
_OPEN: weakref.WeakValueDictionary[Key, RecordLocks] = weakref.WeakValueDictionary()
_FILES: dict[Key, _File] = {}
_OPENING = RLock()  # a garbage collection while it is held may end a `_Use`, which takes it again


@dataclass
class Kernel:
    """What is used of the operating system; a simulation puts a table of its own in its place (see `runtime`)."""

    lockf: Callable[[int, int, int, int], None] = fcntl.lockf
    sched_yield: Callable[[], None] = os.sched_yield


kernel = Kernel()


class _File:
    """The one descriptor that this process has of a lock file; -1 when it is closed."""

    def __init__(self, key: Key, path: Path) -> None:
        self.key, self.users = key, 0
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


class _Use:
    """Keeps a file open; the last one closes it: then nobody in this process has a lock to lose.

    Not `RecordLocks` itself: while an object is being finalized, weak references to it still work, and another thread
    could take up one whose descriptor is closed, or open the file anew just before the close drops its locks.
    """

    file: _File | None = None

    def of(self, file: _File) -> bool:
        """Count as a user; False if the file was closed before."""
        file.users += 1
        self.file = file
        return file.descriptor >= 0

    # Defaults keep what is needed: when the interpreter ends, the names of this module may be gone.
    def __del__(
        self, opening: RLock = _OPENING, files: dict[Key, _File] = _FILES, close: Callable[[int], None] = os.close
    ) -> None:
        if (file := self.file) is None:  # interrupted before the file was open
            return
        with opening:
            file.users -= 1
            if file.users == 0 and file.descriptor >= 0:
                if files.get(file.key) is file:
                    del files[file.key]
                descriptor, file.descriptor = file.descriptor, -1
                close(descriptor)


class RecordLocks:
    """Byte i of the file is lock i. `RecordLocks.of(path)` gives every caller in a process the same object."""

    def __init__(self, use: _Use) -> None:
        assert use.file is not None
        self._use, self.file = use, use.file.descriptor
        self.threads = threading.RLock()

    @staticmethod
    def of(path: Path) -> RecordLocks:
        """Open the lock file, once per process."""
        path.touch(mode=0o600, exist_ok=True)
        with _OPENING:
            stat = path.stat()
            key = (stat.st_dev, stat.st_ino)
            locks = _OPEN.get(key)
            if locks is None:
                locks = _OPEN[key] = RecordLocks(_use(key, path))
            return locks

    @contextmanager
    def hold(self, byte: int, *, shared: bool = False) -> Iterator[None]:
        """Hold lock `byte`, waiting for it."""
        self.take(byte, shared=shared)
        try:
            yield
        finally:
            self.release(byte)

    def take(self, byte: int, *, shared: bool = False) -> float:
        """Take lock `byte`, waiting for it; return the seconds that took, 0 if it was free.

        A stripe is held for less than a millisecond, and on a virtual machine waking a sleeper costs several: so ask
        again for a while, giving the processor away in between, before going to sleep.
        """
        if self.try_take(byte, shared=shared):
            return 0.0
        start = time.perf_counter()
        while time.perf_counter() < start + SPIN_SECONDS:
            kernel.sched_yield()
            if self.try_take(byte, shared=shared):
                return time.perf_counter() - start
        kernel.lockf(self.file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX, 1, byte)
        return time.perf_counter() - start

    def try_take(self, byte: int, *, shared: bool = False) -> bool:
        """Take lock `byte` if it is free."""
        try:
            kernel.lockf(self.file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB, 1, byte)
        except OSError:
            return False
        return True

    def release(self, byte: int) -> None:
        """Let lock `byte` go."""
        kernel.lockf(self.file, fcntl.LOCK_UN, 1, byte)


def _use(key: Key, path: Path) -> _Use:
    """Become a user of a file. The caller holds `_OPENING`; a collection may close the file all the same."""
    while True:
        file = _FILES.get(key)
        if file is None:
            file = _FILES[key] = _File(key, path)
        if (use := _Use()).of(file):
            return use


# A thread of the parent may have held it.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_OPENING._at_fork_reinit)  # type: ignore[attr-defined]
