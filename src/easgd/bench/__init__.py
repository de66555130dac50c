"""Measurements of this machine, always as a ratio to a reference taken in the same run.

A benchmark is a module with a function `rows(...) -> list[Row]`, registered in `BENCHES` under its command-line name.
Numbers of one machine and one day mean little here; a ratio to the physical limit, or to what a user would otherwise
run, means something on any.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

# command-line name -> module with `rows(progress=...)`; imported only when called
BENCHES = {
    "theory": "easgd.bench.theory",
    "simulator": "easgd.bench.simulator",
    "gradients": "easgd.bench.gradients",
    "exchange": "easgd.bench.exchange",
    "overhead": "easgd.bench.overhead",
    "loader": "easgd.bench.loader",
    "wire": "easgd.bench.wire",
    "train": "easgd.bench.train",
}


@dataclass(frozen=True)
class Row:
    """One measured case: `value` in `unit`, the `reference` it is compared with (same unit), and their ratio."""

    case: str
    value: float
    unit: str
    reference: float
    ratio: float

    def as_dict(self) -> dict[str, str | float]:
        """Return the row as `--json` prints it."""
        return asdict(self)


def seconds(call: Callable[[], object], repeat: int = 5, inner: int = 1) -> float:
    """Median seconds of one `call`, over `repeat` timings of `inner` calls each, after one warm-up call."""
    call()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        for _ in range(inner):
            call()
        times.append((time.perf_counter() - start) / inner)
    return statistics.median(times)


def interleaved(calls: dict[str, Callable[[], object]], repeat: int = 5, inner: int = 1) -> dict[str, float]:
    """Median seconds of each call, timed in turn: a, b, a, b, …, so that a noisy neighbour slows all alike."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    for _ in range(repeat):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(inner):
                call()
            times[name].append((time.perf_counter() - start) / inner)
    return {name: statistics.median(samples) for name, samples in times.items()}


def side_by_side(
    call: Callable[[], object], reference: Callable[[], object], repeat: int = 9
) -> tuple[float, float, float]:
    """Median seconds of `call` and of `reference`, and the median of their ratio in adjacent timings.

    Neighbours in time share the machine's mood, so their ratio is steadier than the ratio of two medians.
    """
    call()
    reference()
    pairs = []
    for i in range(repeat):
        times = {}
        for name, function in (("a", call), ("b", reference)) if i % 2 else (("b", reference), ("a", call)):
            start = time.perf_counter()
            function()
            times[name] = time.perf_counter() - start
        pairs.append((times["a"], times["b"]))
    return (
        statistics.median(a for a, _ in pairs),
        statistics.median(b for _, b in pairs),
        statistics.median(a / b for a, b in pairs),
    )
