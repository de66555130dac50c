"""The network between simulated processes: it delays, reorders, repeats, loses, and can be cut."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from chaos.scheduler import Scheduler


@dataclass(frozen=True)
class Weather:
    """How bad the network is.

    Attributes:
        latency: mean of most delays, in seconds.
        late: share of messages that take up to `late_seconds`.
        broken: share of calls whose request or answer is lost, with an error for the caller.
        silent: share of calls whose request or answer is lost without a word.
        repeated: share of messages that arrive twice, where that is harmless by design.
    """

    latency: float = 0.002
    late: float = 0.0
    late_seconds: float = 2.0
    broken: float = 0.0
    silent: float = 0.0
    repeated: float = 0.0


class Network:
    """Carries callbacks from one process to another. Names are those of actors and workers, not of incarnations."""

    def __init__(self, scheduler: Scheduler, weather: Weather) -> None:
        self.scheduler, self.weather = scheduler, weather
        self._cut: dict[tuple[str, str], float] = {}

    def cut(self, source: str, target: str, seconds: float) -> None:
        """Let nothing pass in this direction for a while; what is sent meanwhile arrives afterwards."""
        self._cut[source, target] = self.scheduler.now + seconds

    def delay(self) -> float:
        chance, weather = self.scheduler.random, self.weather
        if chance.random() < weather.late:
            return chance.uniform(0.0, weather.late_seconds)
        return chance.expovariate(1.0 / weather.latency)

    def carry(self, source: str, target: str, deliver: Callable[[], None]) -> None:
        """Call `deliver` when a message from `source` has reached `target`."""

        def arrive() -> None:
            if (until := self._cut.get((source, target), 0.0)) > self.scheduler.now:
                self.scheduler.later(until - self.scheduler.now + self.delay(), arrive)
            else:
                deliver()

        self.scheduler.later(self.delay(), arrive)
