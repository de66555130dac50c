"""ObserverThread a run from the process that started it: every tenth of a second, on a thread of its own."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Protocol

from torch import Tensor

from easgd.methods import Slots

TURN = 0.1


class CenterView(Protocol):
    """A run's center, as an engine lets onlookers see it."""

    @property
    def version(self) -> int:
        """The master's clock."""

    def joined(self) -> list[int]:
        """The ranks that are in the run now."""

    def snapshot(self) -> Slots | None:
        """The center's vectors between two exchanges; None if that is not possible now."""

    def named(self, slots: Slots) -> dict[str, Tensor]:
        """What is measured of a snapshot, under the model's names."""


class Observer(Protocol):
    """Whoever wants to watch."""

    def look(self, center: CenterView) -> None:
        """Called again and again while the run goes on."""

    def ended(self, center: CenterView) -> None:
        """All workers have ended; the center is still there."""


class ObserverThread:
    """Calls `watch.look` for as long as it is entered, then `watch.ended`; an error in it is raised at the end."""

    def __init__(self, watch: Observer | None, center: CenterView) -> None:
        self.watch, self.center = watch, center
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="easgd-watch", daemon=True)

    def _work(self) -> None:
        assert self.watch is not None
        try:
            while not self._stop.wait(TURN):
                self.watch.look(self.center)
        except BaseException as error:
            self._error = error

    def __enter__(self) -> ObserverThread:
        if self.watch is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.watch is None:
            return
        self._stop.set()
        self._thread.join()
        if kind is None:
            if self._error is not None:
                raise self._error
            self.watch.ended(self.center)
