"""The paper's selection: of every method the learning rate with the smallest achievable test error.

Runs whose settings differ in the learning rate and the seed only are one method. Runs of one learning rate differ in
the seed and share the initial point; their smallest test errors are averaged, and the learning rate with the smallest
average stands for the method in curves and tables.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from easgd.training.config import Config

# What a method's curve does not depend on: how often it is looked at, and what it is computed with.
INCIDENTAL = ("evaluate", "evaluate_every", "train_subset", "checkpoint_every", "parallel", "restarts", "history")
BUDGETS = ("steps", "epochs", "seconds", "target")


class Scored(Protocol):
    """A run with its settings, its smallest test error (infinite where none was measured), and whether it is over."""

    @property
    def config(self) -> Config:
        """The settings."""

    @property
    def best(self) -> float:
        """The smallest test error."""

    @property
    def complete(self) -> bool:
        """Whether it came to its end."""


R = TypeVar("R", bound=Scored)


@dataclass
class Choice(Generic[R]):
    """One method with its chosen learning rate."""

    label: str
    lr: float | None
    runs: list[R]
    """the runs of the chosen learning rate, one per seed"""
    score: float
    """mean over the seeds of the smallest test error"""
    tried: dict[float | None, float]
    """the score of every learning rate"""
    config: Config | None
    """settings of the first run; None where they cannot be read"""

    @property
    def counted(self) -> list[R]:
        """The runs that count in numbers: those that are over, or all where none is."""
        return counted(self.runs)

    @property
    def sequential(self) -> bool:
        """Whether one worker trained alone."""
        return self.config is not None and (self.config.method_class.sequential or self.config.workers == 1)


def method_key(config: Config, *more: str) -> tuple[tuple[str, Any], ...]:
    """Return the settings that make a method: all but the seed, the names in `more` and what is incidental."""
    return config.key({"seed", *more, *INCIDENTAL})


def counted(runs: list[R]) -> list[R]:
    """Leave out runs that are still going or were killed, as long as others are over: their best is yet to come."""
    return [run for run in runs if run.complete] or runs


def score(runs: list[R]) -> float:
    """Mean of the smallest test errors; infinite if a run has measured none."""
    errors = [run.best for run in counted(runs)]
    return math.fsum(errors) / len(errors)


def choose(runs: Iterable[R], every: bool = False) -> list[Choice[R]]:
    """Return one choice per method, in the order in which the methods appear; with `every` one per learning rate."""
    methods: dict[Any, dict[float | None, list[R]]] = {}
    for run in runs:
        key = method_key(run.config) if every else method_key(run.config, "lr")
        methods.setdefault(key, {}).setdefault(run.config.lr, []).append(run)
    choices = []
    for rates in methods.values():
        tried = {lr: score(of_rate) for lr, of_rate in rates.items()}
        lr = min(tried, key=lambda rate: (tried[rate], rate or 0.0))
        chosen = sorted(rates[lr], key=lambda run: run.config.seed)
        choices.append(Choice("", lr, chosen, tried[lr], tried, chosen[0].config))
    for choice, label in zip(choices, labels([choice.runs[0].config for choice in choices]), strict=True):
        choice.label = label
    return choices


def labels(configs: list[Config]) -> list[str]:
    """Return a name for each: its label, and where two are the same the settings in which they differ."""
    names = [config.label for config in configs]
    result = []
    for config, name in zip(configs, names, strict=True):
        twins = [other.as_dict() for other, its in zip(configs, names, strict=True) if its == name]
        own = config.as_dict()
        differing = {key for key in own if key not in ("seed", *INCIDENTAL) and any(t[key] != own[key] for t in twins)}
        # How long each was allowed to train is of interest only where nothing else tells them apart.
        telling = differing - set(BUDGETS)
        if sum(all(twin[key] == own[key] for key in telling) for twin in twins) == 1:
            differing = telling
        shown = [f"{'η' if key == 'lr' else key}={_short(own[key])}" for key in own if key in differing]
        result.append(" ".join([name, *shown]))
    return result


def _short(value: object) -> str:
    return "default" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
