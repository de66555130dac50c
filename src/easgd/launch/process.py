"""Child processes: starting them without a race for Ctrl-C, ending them with their parent, naming how they ended."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def sigint_blocked() -> Iterator[None]:
    """Let a child start with SIGINT blocked; it unblocks the signal when it can end without a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class Lifeline:
    """A pipe whose writing end only the parent holds: it closes with the parent, however that ends."""

    def __init__(self) -> None:
        self.read, self._write = os.pipe()

    def close(self) -> None:
        """Close both ends; children that still live end."""
        os.close(self.read)
        os.close(self._write)


def describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
