"""Ctrl-C and its kin, taken for a while."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], None]


@contextmanager
def handle_signals(handler: Handler, *also: signal.Signals) -> Iterator[None]:
    """Let `handler` have SIGINT, SIGTERM and those in `also`; afterwards they mean what they meant before.

    Outside the main thread Python leaves signals to others. A SIGHUP that is ignored stays so: that is `nohup`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    wanted = [signal.SIGINT, signal.SIGTERM, *also]
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        wanted = [number for number in wanted if number != signal.SIGHUP]
    before = {number: signal.signal(number, handler) for number in wanted}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
