"""What a seed stands for on one machine: how many workers, which method, how they exchange, and which faults happen."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import easgd
from chaos.scenario import Fault, draw_faults
from easgd.worker.exchange import Overlap

FAULTS = (
    "kill worker",
    "kill worker",
    "kill worker",
    "pause",
    "join",
    "kill joiner",
    "kill observer",
    "pause observer",
)

METHODS = (
    easgd.EASGD(period=1, beta=0.9),
    easgd.EASGD(period=2, beta=0.9, fragments=2),
    easgd.EASGD(period=1, moving_rate=0.3),
    easgd.EASGD(period=3, beta=0.9, delay=2),
    easgd.EASGD(period="auto", beta=0.9),
    easgd.Downpour(period=1),
    easgd.Downpour(period=2, fragments=2),
    easgd.ADownpour(period=1),
    easgd.ADMM(rho=0.5),
    easgd.AsyncDiLoCo(period=2),
    easgd.EASGD(period=1, beta=0.9, sync=True),
    easgd.EASGD(period=2, beta=0.9, sync=True, fragments=2),
    easgd.LocalSGD(period=1),
    easgd.LocalSGD(period=2, fragments=2),
    easgd.DiLoCo(period=1),
)
STRIPES = 3
"""Of each fragment."""


@dataclass(frozen=True)
class LocalScenario:
    """One simulated run on one machine. `LocalScenario.of(seed)` draws everything; a test may name what it needs."""

    seed: int
    workers: int = 3
    steps: int = 6
    method: Any = field(default_factory=lambda: easgd.EASGD(period=1, beta=0.9))
    turns: bool = False
    """Whether asynchronous workers act in turn, round-robin."""
    way: str = "hidden"
    """How they exchange: "hidden", "in place" or "blocking"."""
    restarts: int = 2
    step_seconds: float = 0.05
    preempt: float = 0.2
    observe_seconds: float = 0.2
    """Between two snapshots."""
    history: bool = True
    faults: tuple[Fault, ...] = ()
    deadline: float = 60.0
    """Of a synchronous round."""

    @property
    def size(self) -> int:
        return 32 * STRIPES * self.method.fragments

    @property
    def schedule(self) -> str:
        return "sync" if getattr(self.method, "sync", False) else "round-robin" if self.turns else "async"

    @property
    def overlap(self) -> Overlap:
        return {"hidden": True, "in place": "auto", "blocking": False}[self.way]  # type: ignore[return-value]

    @staticmethod
    def of(seed: int) -> LocalScenario:
        """Draw a scenario."""
        chance = random.Random(f"local scenario {seed}")
        steps, step_seconds = chance.randint(3, 8), chance.choice((0.002, 0.05))
        workers = chance.randint(1, 4)
        return LocalScenario(
            seed, workers, steps, chance.choice(METHODS), turns=chance.random() < 0.2,
            way=chance.choice(("hidden", "in place", "blocking")), restarts=chance.randint(0, 2),
            step_seconds=step_seconds, preempt=chance.choice((0.05, 0.3)),
            observe_seconds=chance.choice((0.01, 0.2)), history=chance.random() < 0.7,
            faults=draw_faults(chance, 0.5 + 2.0 * steps * step_seconds, FAULTS),
        )  # fmt: skip
