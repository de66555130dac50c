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
from threading import Lock

from easgd.runtime import threading, time

SPIN_SECONDS = 2e-3
_OPEN: weakref.WeakValueDictionary[tuple[int, int], RecordLocks] = weakref.WeakValueDictionary()
_OPENING = Lock()


@dataclass
class Kernel:
    """What is used of the operating system; a simulation puts a table of its own in its place (see `runtime`)."""

    lockf: Callable[[int, int, int, int], None] = fcntl.lockf
    sched_yield: Callable[[], None] = os.sched_yield


kernel = Kernel()


class RecordLocks:
    """Byte i of the file is lock i. `RecordLocks.of(path)` gives every caller in a process the same object."""

    def __init__(self, path: Path) -> None:
        self.file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
                locks = _OPEN[key] = RecordLocks(path)
            return locks

    def __del__(self) -> None:
        os.close(self.file)  # nobody in this process uses the file any more: there is no lock to lose

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
