"""Benchmarks, each reported as a ratio to a reference that is measured in the same run.

A benchmark is a module with a function `rows(...) -> list[Row]`, registered in `BENCHES` under its command-line name.
Absolute numbers depend on the machine and its load. A ratio to the hardware's limit, or to what a user would run
otherwise, can be compared between machines.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Empty
from typing import Any

# command-line name → module, which is imported when the benchmark is run
BENCHES = {
    "theory": "easgd.bench.theory",
    "simulator": "easgd.bench.simulator",
    "period": "easgd.bench.period",
    "gradients": "easgd.bench.gradients",
    "exchange": "easgd.bench.exchange",
    "overhead": "easgd.bench.overhead",
    "loader": "easgd.bench.loader",
    "wire": "easgd.bench.wire",
    "scale": "easgd.bench.scale",
    "train": "easgd.bench.train",
    "worth": "easgd.bench.worth",
    "chaos": "easgd.bench.chaos",
    "faults": "easgd.bench.faults",
    "link": "easgd.bench.link.speeds",
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
        return asdict(self)


def timed(call: Callable[[], object]) -> float:
    """Return the seconds that one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def interleaved(calls: dict[str, Callable[[], object]], repeat: int = 5) -> dict[str, float]:
    """Return the median seconds of each call after a warm-up, timed in turn (a, b, a, b, …): other load hits all."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(repeat + 1):
        for name, call in calls.items():
            taken = timed(call)
            if round_:
                times[name].append(taken)
    return {name: statistics.median(samples) for name, samples in times.items()}


def side_by_side(
    call: Callable[[], object], reference: Callable[[], object], repeat: int = 9
) -> tuple[float, float, float]:
    """Return the median seconds of `call` and of `reference`, and the median ratio of adjacent timings.

    The load of the machine is nearly the same for adjacent timings, so this ratio varies less than that of two medians.
    """
    call()
    reference()
    return medians(lambda: timed(call), lambda: timed(reference), repeat)


def medians(measure: Callable[[], float], reference: Callable[[], float], repeat: int) -> tuple[float, float, float]:
    """Measure both `repeat` times, in alternating order; return both medians and the median of their ratio."""
    pairs = []
    for i in range(repeat):
        if i % 2:
            pairs.append((measure(), reference()))
        else:
            second = reference()
            pairs.append((measure(), second))
    a, b, ratio = zip(*((a, b, a / b) for a, b in pairs), strict=True)
    return statistics.median(a), statistics.median(b), statistics.median(ratio)


def in_processes(target: Callable[..., None], count: int, *arguments: Any, timeout: float = 900) -> list[Any]:
    """Run `target(*arguments, rank, barrier, queue)` in `count` spawned processes; return what each put on the queue.

    The barrier is for all processes; each must put exactly one result.
    """
    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(count), context.Queue()
    processes = [context.Process(target=target, args=(*arguments, rank, barrier, queue)) for rank in range(count)]
    for process in processes:
        process.start()
    results: list[Any] = []
    end = time.monotonic() + timeout
    while len(results) < count:
        try:
            results.append(queue.get(timeout=1.0))
        except Empty:
            failed = [process.exitcode for process in processes if process.exitcode]
            if failed or time.monotonic() > end:
                # The others may wait for it at the barrier.
                for process in processes:
                    process.kill()
                why = f"exit code {failed[0]}" if failed else f"no result within {timeout:g} s"
                raise RuntimeError(f"a process of the benchmark failed: {why}") from None
    for process in processes:
        process.join()
    return results


def memory_folder() -> str | None:
    """Return a folder in memory for temporary files, or None for the system's default."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
