"""The engines that can be simulated, by name. Each is imported when it is asked for: one needs Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from chaos.outcome import Outcome
from easgd.methods import Method


@dataclass(frozen=True)
class Engine:
    """What a seed means for an engine, and its deliberate breakages."""

    run: Callable[[int], Outcome]
    methods: Sequence[Method]
    mutants: dict[str, Callable[[], AbstractContextManager[Any]]]

    def first_seed(self, mutant: str, seeds: Iterable[int]) -> tuple[int, Outcome] | None:
        """Return the first seed at which the simulation notices a breakage."""
        with self.mutants[mutant]():
            for seed in seeds:
                if (outcome := self.run(seed)).faults:
                    return seed, outcome
        return None


def ray() -> Engine:
    """The cluster engine."""
    from chaos.mutants import MUTANTS
    from chaos.scenario import METHODS, Scenario
    from chaos.simulation import simulate

    return Engine(lambda seed: simulate(Scenario.of(seed)), METHODS, MUTANTS)


def local() -> Engine:
    """The engine of one machine."""
    from chaos.local.mutants import MUTANTS
    from chaos.local.scenario import METHODS, LocalScenario
    from chaos.local.simulation import simulate

    return Engine(lambda seed: simulate(LocalScenario.of(seed)), METHODS, MUTANTS)


ENGINES: dict[str, Callable[[], Engine]] = {"ray": ray, "local": local}
