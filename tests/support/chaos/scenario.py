"""What a seed stands for: how many of what, which method, how bad the network is, and which faults happen when."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import easgd
from chaos.network import Weather
from easgd.center.layout import fragment_bounds

FAULTS = (
    "kill worker", "kill shard", "kill coordinator", "cut", "one way", "pause", "join", "kill joiner", "fill disk",
)  # fmt: skip


METHODS = (
    easgd.EASGD(period=1, beta=0.9),
    easgd.EASGD(period=2, beta=0.9, fragments=2),
    easgd.EASGD(period=2, moving_rate=0.3),
    easgd.EASGD(period=1, beta=0.9, sync=True),
    easgd.EASGD(period=3, beta=0.9, delay=2),
    easgd.Downpour(period=1),
    easgd.Downpour(period=2, fragments=2),
    easgd.ADMM(rho=0.5),
    easgd.AsyncDiLoCo(period=2),
)


@dataclass(frozen=True)
class Fault:
    """`what` happens at `at` to `who` (a number, taken modulo how many there are), for `seconds`."""

    at: float
    what: str
    who: int = 0
    other: int = 0
    seconds: float = 1.0

    def __str__(self) -> str:
        return f"{self.at:.2f} s: {self.what} {self.who}/{self.other} for {self.seconds:.2f} s"


@dataclass(frozen=True)
class Scenario:
    """One simulated run. `Scenario.of(seed)` draws everything; a test may name what it needs."""

    seed: int
    workers: int = 3
    shards: int = 2
    steps: int = 6
    method: Any = field(default_factory=lambda: easgd.EASGD(period=1, beta=0.9))
    compression: str | None = None
    overlap: bool = False
    restarts: int = 2
    interval: float = 3.0
    step_seconds: float = 0.3
    preempt: float = 0.2
    weather: Weather = field(default_factory=Weather)
    faults: tuple[Fault, ...] = ()
    deadline: float = 60.0
    """Of a synchronous round."""
    secret: bytes = b""
    """With one, messages go over sockets; without, through Ray's calls."""

    @property
    def size(self) -> int:
        return 1024 * self.shards

    @property
    def schedule(self) -> str:
        return "sync" if getattr(self.method, "sync", False) else "async"

    def fragments(self) -> list[tuple[int, int]]:
        return fragment_bounds(self.size, self.method.fragments)

    @staticmethod
    def of(seed: int) -> Scenario:
        """Draw a scenario."""
        chance = random.Random(f"scenario {seed}")
        bad = chance.random() < 0.5
        weather = Weather(
            latency=chance.choice((0.0005, 0.005, 0.05)),
            late=chance.choice((0.0, 0.05, 0.2)),
            late_seconds=chance.choice((0.5, 2.0, 8.0)),
            broken=chance.choice((0.01, 0.05)) if bad else 0.0,
            silent=chance.choice((0.0, 0.005)) if bad else 0.0,
            repeated=chance.choice((0.0, 0.1)),
        )
        steps, step_seconds = chance.randint(3, 8), chance.choice((0.05, 0.3))
        faults = draw_faults(chance, 2.0 + 3.0 * steps * step_seconds)
        secret = b"secret" if random.Random(f"sockets {seed}").random() < 0.5 else b""
        return Scenario(
            seed, workers=chance.randint(1, 4), shards=chance.randint(1, 3), steps=steps,
            method=chance.choice(METHODS),
            compression=chance.choice((None, None, "int8", "bf16")), overlap=chance.random() < 0.5,
            restarts=chance.randint(0, 2), interval=chance.choice((1.0, 3.0)),
            step_seconds=step_seconds, preempt=chance.choice((0.05, 0.3)), weather=weather, faults=faults,
            secret=secret,
        )  # fmt: skip


def draw_faults(chance: random.Random, end: float, kinds: tuple[str, ...] = FAULTS) -> tuple[Fault, ...]:
    """Draw up to six faults; some come right after one another, as a machine takes all its processes with it."""
    faults: list[Fault] = []
    for _ in range(chance.choice((0, 1, 2, 3, 4, 6))):
        at = chance.uniform(0.0, end)
        if faults and chance.random() < 0.4:
            at = faults[-1].at + chance.expovariate(10.0)
        who, other = chance.randrange(8), chance.randrange(8)
        faults.append(Fault(at, chance.choice(kinds), who, other, chance.expovariate(0.5)))
    return tuple(sorted(faults, key=lambda fault: fault.at))
