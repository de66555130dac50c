"""Shows a run to the process that started it: ten times a second, on a thread of its own."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from easgd.methods import Slots

_SECONDS = 0.1


class CenterView(Protocol):
    """A run's center, read by a process that takes no part in the training."""

    @property
    def version(self) -> int:
        """The master's clock: the updates of all fragments together."""

    @property
    def clocks(self) -> list[list[int]]:
        """Of each fragment, its updates and the one at which its average began."""

    def joined(self) -> list[int]:
        """The ranks that are in the run now."""

    def snapshot(self) -> Slots | None:
        """The center's vectors between two exchanges; None if that is not possible now."""

    def named(self, slots: Slots) -> dict[str, Tensor]:
        """What is measured of a snapshot, under the model's names."""


class Observer(Protocol):
    """An object that `easgd.run(…, observer=…)` shows the center to."""

    def look(self, center: CenterView) -> None:
        """Called again and again while the run goes on."""

    def ended(self, center: CenterView) -> None:
        """All workers have ended; the center is still there."""


class ObserverThread:
    """Calls `look` for as long as it is entered, then `ended`; an error in `look` is raised at the end."""

    def __init__(self, observer: Observer, center: CenterView) -> None:
        self.observer, self.center = observer, center
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="easgd-observer", daemon=True)

    def _work(self) -> None:
        try:
            while not self._stop.wait(_SECONDS):
                self.observer.look(self.center)
        except BaseException as error:
            self._error = error

    def __enter__(self) -> ObserverThread:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        if kind is None:
            if self._error is not None:
                raise self._error
            self.observer.ended(self.center)
