"""Handle the signals that ask a program to end: SIGINT (Ctrl-C), SIGTERM and SIGHUP (the terminal was closed)."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

Handler = Callable[[int, FrameType | None], None]
_MAIN = threading.main_thread().ident


@contextmanager
def handle_signals(handler: Handler) -> Iterator[None]:
    """Call `handler` for SIGINT, SIGTERM and SIGHUP inside the block; restore the former handlers after it.

    A SIGHUP that is ignored stays ignored: that is how `nohup` works. Outside the main thread, where Python cannot set
    handlers, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    wanted = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        wanted.append(signal.SIGHUP)
    before = {number: signal.signal(number, handler) for number in wanted}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


class _Held:
    """Whether the main thread is where no signal may interrupt it, and what is to be raised afterwards."""

    depth = 0
    pending: BaseException | None = None


def hold() -> None:
    """Begin a stretch of the main thread that `interrupt` does not break up; nothing happens in other threads."""
    if threading.get_ident() == _MAIN:
        _Held.depth += 1


def let_go() -> None:
    """End the stretch; raise what came meanwhile."""
    if threading.get_ident() == _MAIN:
        _Held.depth -= 1
        if _Held.pending is not None and not _Held.depth:
            pending, _Held.pending = _Held.pending, None
            raise pending


def interrupt(error: BaseException) -> None:
    """Raise an error from a signal's handler: at once, or at the end of the stretch that the main thread is in."""
    if _Held.depth:
        _Held.pending = error
    else:
        raise error


class Stoppable(Protocol):
    """A run that ends soon after `stop_requested` is set."""

    stop_requested: bool


class StopRequest:
    """A handler whose first signal asks the run to save its state and end; the second raises KeyboardInterrupt.

    The run is named with `tell`. A signal that comes earlier is kept for it.
    """

    def __init__(self) -> None:
        self._received = False
        self._run: Stoppable | None = None

    def tell(self, run: Stoppable) -> None:
        """Name the run that is to stop."""
        self._run = run
        run.stop_requested = self._received

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self._received:
            raise KeyboardInterrupt
        self._received = True
        if self._run is not None:
            self._run.stop_requested = True
