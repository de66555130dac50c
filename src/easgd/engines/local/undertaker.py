"""Tells the center about the dead, without keeping the launcher from watching the living.

The center's code needs torch, whose import takes seconds the first time; so it happens on a thread, and only in a run
that has a center. A script that never attached never pays.
"""

from __future__ import annotations

import queue
import threading
from pathlib import Path

from easgd.engines.local.remains import has_center


class Undertaker:
    """Buries on a thread of its own, one after the other."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._dead: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="easgd-undertaker", daemon=True)
        self._thread.start()

    def bury(self, rank: int, incarnation: int) -> None:
        """Have a worker marked dead, so that the moving rate follows the living."""
        if has_center(self.run):
            self._dead.put((rank, incarnation))

    def _work(self) -> None:
        while (dead := self._dead.get()) is not None:
            from easgd.center import shared

            shared.bury(self.run, *dead)

    def close(self) -> None:
        """Wait until all are buried."""
        self._dead.put(None)
        self._thread.join()
