"""Tells the center about the dead, without keeping the launcher from watching the living.

A worker that was stopped, not killed, may hold the control lock for a while: waiting for it happens on a thread.
"""

from __future__ import annotations

import queue
import threading
from pathlib import Path

from easgd.engines.local.control import mark_dead


class DeathMarker:
    """Buries on a thread of its own, one after the other."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._dead: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="easgd-undertaker", daemon=True)
        self._thread.start()

    def mark_dead(self, rank: int, incarnation: int) -> None:
        """Have a worker marked dead, so that the moving rate follows the living."""
        self._dead.put((rank, incarnation))

    def _work(self) -> None:
        while (dead := self._dead.get()) is not None:
            mark_dead(self.run, *dead)

    def close(self) -> None:
        """Wait until all are buried."""
        self._dead.put(None)
        self._thread.join()
