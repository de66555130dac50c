"""One pass over a run's records: sums, binned series and events. The records themselves are never held."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from easgd.records import Attached, Breakdown, Event, Record, Step, Totals

SHOWN_EVENTS = 200


class BinnedMean:
    """The mean of a quantity over time, in at most `size` bins; the bins double when time outgrows them."""

    def __init__(self, size: int = 200) -> None:
        self.size, self.width = size, 0.0
        self._bins: dict[int, tuple[int, float]] = {}

    def add(self, time: float, value: float) -> None:
        """Add a value; what is not finite or lies before the start is left out."""
        if not (math.isfinite(value) and 0 <= time < math.inf):
            return
        self.width = self.width or max(time, 1e-9) / self.size
        while time >= self.width * self.size:
            self._double()
        place = int(time / self.width)
        count, total = self._bins.get(place, (0, 0.0))
        self._bins[place] = (count + 1, total + value)

    def _double(self) -> None:
        merged: dict[int, tuple[int, float]] = {}
        for place, (count, total) in self._bins.items():
            other = merged.get(place // 2, (0, 0.0))
            merged[place // 2] = (other[0] + count, other[1] + total)
        self._bins, self.width = merged, 2 * self.width

    def points(self) -> tuple[list[float], list[float]]:
        """Return the middles of the bins and the means in them."""
        places = sorted(self._bins)
        return (
            [(place + 0.5) * self.width for place in places],
            [self._bins[place][1] / self._bins[place][0] for place in places],
        )


class Scan:
    """Sums over the records of one run; `distance`, `staleness` and the workers' own `loss` are means over time."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.distance, self.staleness, self.loss = BinnedMean(), BinnedMean(), BinnedMean()
        self.bytes = self.exchanges = 0
        self.counts: Counter[str] = Counter()
        self.nodes: dict[str, set[int]] = {}
        self.events: list[Event] = []
        self.attached: Attached | None = None
        """As the first worker to join was."""
        self._all = Totals()
        for record in records:
            if isinstance(record, Step):
                self._step(record)
            else:
                self.counts[record.event] += 1
                self.attached = self.attached or record.attached
                if record.node and record.worker is not None:
                    self.nodes.setdefault(record.node, set()).add(record.worker)
                if len(self.events) < SHOWN_EVENTS:
                    self.events.append(record)
        self.events.sort(key=lambda event: event.time)

    def _step(self, step: Step) -> None:
        self._all.add(step)
        self.bytes += step.bytes
        if step.staleness is not None:
            self.exchanges += 1
            self.staleness.add(step.time, step.staleness)
        if step.loss is not None:
            self.loss.add(step.time, step.loss)
        if step.distance is not None:
            self.distance.add(step.time, step.distance)

    @property
    def steps(self) -> int:
        """Local steps of all workers together."""
        return self._all.steps

    @property
    def breakdown(self) -> Breakdown:
        """Mean over the workers."""
        return self._all.breakdown()
