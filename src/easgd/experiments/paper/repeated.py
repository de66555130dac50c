"""One method with one set of settings, over its seeds: when it came to a test error, and how low it got."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, median

import numpy as np

from easgd.experiments.paper.numbers import settled
from easgd.experiments.paper.particulars import particulars
from easgd.report.entry import ReportRun
from easgd.report.levels import reached
from easgd.training.config import Config
from easgd.training.select import BUDGETS, INCIDENTAL

SETTLED = "A time is that of the first of three measurements in a row at or below the level."


@dataclass(frozen=True)
class Repeated:
    """Runs that differ in their seed alone, the smallest seed first."""

    runs: list[ReportRun]

    @property
    def config(self) -> Config:
        """The settings that they share."""
        return self.runs[0].config

    @property
    def name(self) -> str:
        """Method, p and rate, and what is not the paper's about them."""
        workers = "" if self.sequential else f" p = {self.config.workers}"
        return f"{self.config.method_class.name}{workers}, {self.rate}"

    @property
    def rate(self) -> str:
        """The rate, and what is not the paper's about it."""
        return ", ".join([f"η = {self.config.lr:g}", *particulars(self.config)])

    @property
    def sequential(self) -> bool:
        """Whether one worker trains alone."""
        return self.config.method_class.sequential

    @property
    def papers(self) -> bool:
        """Whether nothing but its rate was chosen: the spring is α = β/p, δ the paper's."""
        return not particulars(self.config)

    @property
    def watched(self) -> float:
        """Virtual seconds for which all seeds were watched."""
        return min(float(run.curves["time"][-1]) for run in self.runs)

    @property
    def interval(self) -> float:
        """Virtual seconds between two measurements."""
        times = self.runs[0].curves["time"]
        return float(times[1] - times[0]) if len(times) > 1 else math.nan

    @property
    def best(self) -> float:
        """The smallest test error, a mean over the seeds."""
        return mean(run.best for run in self.runs)

    def best_within(self, budget: float) -> float:
        """Return the same for the first `budget` seconds."""
        return mean(float(run.curves["test_error"][run.curves["time"] <= budget].min()) for run in self.runs)

    def times(self, level: float, every: float = 0.0) -> list[float]:
        """Return each seed's time to a level, the soonest first; infinite where it never settled there."""
        curves = [(run.curves["time"].tolist(), run.curves["test_error"].tolist()) for run in self.runs]
        found = [settled(*curve, level, every) for curve in curves]
        return sorted(math.inf if time is None else time for time in found)

    def time_to(self, level: float, every: float = 0.0) -> float:
        """Return the median of `times`."""
        return median(self.times(level, every))

    def once(self, level: float) -> float:
        """Return the first time at a level, settled or not: the median over the seeds."""
        return median(reached(run, level) for run in self.runs)

    def errors(self) -> tuple[np.ndarray, np.ndarray]:
        """Return times, and the test errors of all seeds there [seeds, times], for as long as all were watched."""
        time = self.runs[0].curves["time"]
        time = time[time <= self.watched]
        return time, np.stack([np.interp(time, run.curves["time"], run.curves["test_error"]) for run in self.runs])


def repeated(runs: Sequence[ReportRun]) -> list[Repeated]:
    """Put runs together that differ in their seed, and in how long they were allowed to train; few workers first."""
    groups: dict[object, list[ReportRun]] = {}
    for run in runs:
        groups.setdefault(run.config.key({"seed", *INCIDENTAL, *BUDGETS}), []).append(run)
    found = [Repeated(sorted(group, key=lambda run: run.config.seed)) for group in groups.values()]
    return sorted(found, key=_order)


def _order(one: Repeated) -> tuple[int, float, float, float, float]:
    config = one.config
    decay = config.gamma if config.decay == "sqrt" else 0.0
    return config.workers or 1, -(config.lr or 0.0), config.moving_rate or 0.0, config.momentum or 0.0, decay
