"""What a worker measures of its exchanges, as scalars for a logger."""

from __future__ import annotations

from easgd.records import Step
from easgd.worker.worker import Worker


class Observables:
    """Adds up a worker's step records between two calls of `take`."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self._sums = dict.fromkeys(("waiting", "communication", "bytes"), 0.0)
        self._last: dict[str, float] = {}
        worker.recorder.listen(self.add)

    def add(self, step: Step) -> None:
        """Count one step."""
        for name in self._sums:
            self._sums[name] += float(getattr(step, name))
        for name in ("distance", "staleness"):
            if (value := getattr(step, name)) is not None:
                self._last[name] = float(value)

    def take(self) -> dict[str, float]:
        """Return the scalars since the last call; nothing for a worker alone, which exchanges nothing.

        `easgd/distance` is ‖x − x̃‖ and `easgd/staleness` the center's updates between two exchanges, both of the last
        exchange. `easgd/waiting` and `easgd/communication` (seconds) and `easgd/bytes` are sums.
        """
        if self.worker.context.alone:
            return {}
        values = {f"easgd/{name}": value for name, value in (self._last | self._sums).items()}
        self._sums = dict.fromkeys(self._sums, 0.0)
        return values
