"""An asyncio event loop on the virtual clock: the coordinator is an actor with coroutines."""

from __future__ import annotations

import asyncio
from typing import Any

from chaos.scheduler import Scheduler, Thread


class SimLoop(asyncio.BaseEventLoop):
    """Waits in the scheduler instead of in a selector."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self.scheduler = scheduler
        self._selector: Any = self
        self._sleeper: Thread | None = None
        self._called = False
        self.set_exception_handler(lambda loop, context: None)

    def time(self) -> float:
        return self.scheduler.now

    def select(self, timeout: float | None) -> list[Any]:
        """Let others run; until a timer of this loop, or until another thread has something for it."""
        if timeout == 0 or self._called:
            self.scheduler.point()
        else:
            self._sleeper = self.scheduler.me
            self.scheduler.block(timeout)
            self._sleeper = None
        self._called = False
        return []

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        self._called = True
        if self._sleeper is not None:
            self.scheduler.wake(self._sleeper)

    def serve(self) -> None:
        """Run until the process is killed; what is unfinished then is not worth a warning."""
        try:
            self.run_forever()
        finally:
            for task in asyncio.all_tasks(self):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
