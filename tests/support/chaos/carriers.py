"""What simulated threads run on: greenlets where the package is installed, else real threads. The schedule is the same.

Handing the baton from one real thread to another costs a millisecond where others keep the processors busy; a greenlet
costs microseconds.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chaos.scheduler import Thread

try:
    import greenlet
except ImportError:
    greenlet = None  # type: ignore[assignment]

Run = Callable[["Thread"], None]


def carriers(run: Run, following: Callable[[], Thread | None]) -> GreenletCarriers | ThreadCarriers:
    """Return the best kind there is. `run` is a thread's work, `following` picks who goes on when one has ended."""
    return ThreadCarriers(run, following) if greenlet is None else GreenletCarriers(run, following)


class GreenletCarriers:
    """All simulated threads on one real thread."""

    def __init__(self, run: Run, following: Callable[[], Thread | None]) -> None:
        self._run, self._following = run, following
        self._hub = greenlet.getcurrent()

    def drive(self) -> None:
        """Run until all threads have ended."""
        while (thread := self._following()) is not None:
            self._of(thread).switch()

    def switch(self, thread: Thread, to: Thread) -> None:
        """Let `to` run; return when it is this thread's turn again."""
        # asyncio keeps the running loop for each real thread, and here they all share one.
        loop = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        self._of(to).switch()
        asyncio._set_running_loop(loop)

    def _of(self, thread: Thread) -> Any:
        if thread.carrier is None:
            thread.carrier = greenlet.greenlet(lambda: self._run(thread), self._hub)
        return thread.carrier

    def frame(self, thread: Thread) -> FrameType | None:
        """Where the thread is."""
        return None if thread.carrier is None else thread.carrier.gr_frame


class ThreadCarriers:
    """A real thread for each, of which only the one with the baton runs."""

    idle: list[Carrier] = []  # noqa: RUF012 (shared by all simulations: starting a thread is slow)

    def __init__(self, run: Run, following: Callable[[], Thread | None]) -> None:
        self.run, self._following = run, following
        self._main = threading.Lock()
        self._main.acquire()

    def drive(self) -> None:
        """Run until all threads have ended."""
        self.resume(self._following())
        self._main.acquire()

    def switch(self, thread: Thread, to: Thread) -> None:
        """Let `to` run; return when it is this thread's turn again."""
        self.resume(to)
        thread.carrier.baton.acquire()

    def resume(self, thread: Thread | None) -> None:
        """Give the baton away."""
        if thread is None:
            self._main.release()
            return
        if thread.carrier is None:
            thread.carrier = self.idle.pop() if self.idle else Carrier()
            thread.carrier.work = (self, thread)
        thread.carrier.baton.release()

    def ended(self) -> None:
        """The thread that ran has ended."""
        self.resume(self._following())

    def frame(self, thread: Thread) -> FrameType | None:
        """Where the thread is."""
        return None if thread.carrier is None else sys._current_frames().get(thread.carrier.real.ident)


class Carrier:
    """A real thread that runs simulated ones, one after the other."""

    def __init__(self) -> None:
        self.baton = threading.Lock()
        self.baton.acquire()
        self.work: tuple[ThreadCarriers, Thread] | None = None
        self.real = threading.Thread(target=self._run, name="chaos", daemon=True)
        self.real.start()

    def _run(self) -> None:
        while True:
            self.baton.acquire()
            assert self.work is not None
            carriers, thread = self.work
            carriers.run(thread)
            self.work = None
            carriers.idle.append(self)
            carriers.ended()
