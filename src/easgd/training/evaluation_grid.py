"""When the center is measured: on a grid of time, or of steps where no time is set."""

from __future__ import annotations

from dataclasses import dataclass

from easgd.training.config import Config

POINTS = 40
SECONDS = 10.0
"""Between two points, where only the test error ends a run."""


@dataclass(frozen=True)
class Grid:
    """Points at every `seconds`, or at every `steps` of all workers together."""

    seconds: float | None = None
    steps: float | None = None

    @staticmethod
    def of(config: Config, most_steps: float) -> Grid:
        """Return the grid that the settings ask for, or forty points over the budget."""
        if config.evaluate_every is not None:
            return Grid(seconds=config.evaluate_every)
        if most_steps == float("inf"):
            return Grid(seconds=config.seconds / POINTS if config.seconds else SECONDS)
        return Grid(steps=max(1.0, most_steps / POINTS))

    def point(self, time: float, steps: int) -> int:
        """Return the number of the last point that is reached."""
        # The tolerance counts a point whose quotient is rounded down below its number.
        if self.seconds is not None:
            return int(time / self.seconds + 1e-9)
        assert self.steps is not None
        return int(steps / self.steps + 1e-9)
