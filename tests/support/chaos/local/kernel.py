"""The kernel's record locks, as a table: who holds which byte of which file, and who waits for it."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager

from chaos.scheduler import Process, Scheduler, Thread
from easgd import locks

Byte = tuple[int, int]
"""(inode, number of the byte)"""


class SimKernel:
    """`fcntl` locks: they belong to a process, which may change the kind of its own, and end with it."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.held: dict[Byte, dict[Process, bool]] = {}
        """by byte, its holders, each with whether it shares the lock"""
        self.waiting: dict[Thread, Byte] = {}

    def lockf(self, file: int, command: int, length: int, start: int) -> None:
        """As `fcntl.lockf`, for one byte."""
        assert length == 1
        self.scheduler.point()
        me, byte = self.scheduler.me, (os.fstat(file).st_ino, start)
        if command & fcntl.LOCK_UN:
            self._release(me.process, byte)
            return
        shared = bool(command & fcntl.LOCK_SH)
        while self._in_the_way(me.process, byte, shared):
            if command & fcntl.LOCK_NB:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            self.waiting[me] = byte
            if self._waits_for(me.process, me.process, []):
                del self.waiting[me]
                raise OSError(errno.EDEADLK, os.strerror(errno.EDEADLK))
            self.scheduler.block()
            del self.waiting[me]
        self.held.setdefault(byte, {})[me.process] = shared
        if shared:
            self._wake(byte)  # it may have been exclusive before

    def sched_yield(self) -> None:
        """Let others run, as a loop that asks again and again does."""
        self.scheduler.sleep(0.0)

    def drop(self, process: Process) -> None:
        """A process has ended: its locks fall open, and it waits for none."""
        self.waiting = {thread: byte for thread, byte in self.waiting.items() if thread.process is not process}
        for byte in [byte for byte, holders in self.held.items() if process in holders]:
            self._release(process, byte)

    def holds(self, process: Process, below: int) -> bool:
        """Whether a process holds a lock with a number below this."""
        return any(process in holders for (_, number), holders in self.held.items() if number < below)

    def _release(self, process: Process, byte: Byte) -> None:
        if self.held.get(byte, {}).pop(process, None) is not None:
            self._wake(byte)

    def _wake(self, byte: Byte) -> None:
        for thread, wanted in self.waiting.items():
            if wanted == byte:
                self.scheduler.wake(thread)

    def _in_the_way(self, process: Process, byte: Byte, shared: bool) -> list[Process]:
        holders = self.held.get(byte, {})
        return [other for other, sharing in holders.items() if other is not process and not (shared and sharing)]

    def _waits_for(self, process: Process, whom: Process, seen: list[Process]) -> bool:
        """Whether a chain of waiting processes leads from one to another; the kernel refuses such a wait."""
        seen.append(process)
        for thread, byte in self.waiting.items():
            if thread.process is process:
                holders = [other for other in self.held.get(byte, {}) if other is not process]
                if whom in holders or any(self._waits_for(h, whom, seen) for h in holders if h not in seen):
                    return True
        return False

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Answer `easgd.locks`."""
        before = dict(vars(locks.kernel))
        try:
            vars(locks.kernel).update(lockf=self.lockf, sched_yield=self.sched_yield)
            yield
        finally:
            vars(locks.kernel).update(before)
