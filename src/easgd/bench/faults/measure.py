"""Disturbs one run of each engine, a fault after the other, and measures what each costs."""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from easgd.bench import Row
from easgd.bench.faults.disturbed import DisturbedRun, disturbed
from easgd.bench.faults.job import PERIOD, SLOW

WORKERS = 3
REPEAT = 3
WINDOW_SECONDS = 3.0
NOTICED, PAUSED, GRACE, INTERVAL = 1.0, 5.0, 10.0, 1.0
"""Seconds that docs/faults.md promises; INTERVAL is that of the center's checkpoints in the measured run."""


def rows(engine: str | None = None) -> list[Row]:
    """Measure the engine, or both."""
    engines = [engine] if engine is not None else ["local", *(["ray"] if find_spec("ray") else [])]
    return [row for name in engines for row in (local_rows() if name == "local" else ray_rows())]


def local_rows() -> list[Row]:
    """The cases of processes of this machine."""
    with tempfile.TemporaryDirectory() as place, disturbed(Path(place), WORKERS) as run:
        return [*common(run, "local"), *ends(run, "local")]


def ray_rows() -> list[Row]:
    """The same on a Ray of this machine, with the faults of a center that is processes too."""
    from easgd.engines.ray.cluster import connect

    cluster = connect(None)
    try:
        options = ("--ray", cluster.address, "--interval", str(INTERVAL))
        with tempfile.TemporaryDirectory() as place, disturbed(Path(place), WORKERS, *options) as run:
            return [*common(run, "ray"), *center_rows(run), *ends(run, "ray")]
    finally:
        cluster.close()


def row(case: str, values: list[float], unit: str, reference: float) -> Row:
    """The median of what was measured, beside its reference."""
    value = statistics.median(values)
    return Row(case, value, unit, reference, value / reference)


def common(run: DisturbedRun, engine: str) -> Iterator[Row]:
    """Deaths, pauses, a slow worker, a joiner."""
    fast, alone, beside = range(WORKERS - 1), list[float](), list[float]()
    for _ in range(REPEAT):
        alone.append(_pace(run, fast))
        (mark := run.folder / f"{SLOW}-{WORKERS - 1}").touch()
        beside.append(_pace(run, fast))
        mark.unlink()
    yield row(f"12 {engine}: steps of the others beside one ten times slower", beside, "steps/s",
              statistics.median(alone))  # fmt: skip
    noticed, again, paused = list[float](), list[float](), list[float]()
    rank = WORKERS - 1
    for k in range(REPEAT):
        died = run.one_more("death")
        run.signal(rank, k, signal.SIGKILL)
        noticed.append(run.seconds_until(died))
        again.append(noticed[-1] + run.seconds_until(run.trains(rank, k + 1)))
        # On a busy machine its heartbeats may have been late: only a pause that begins now counts.
        run.seconds_until(lambda: not run.paused(rank))
        stopped, resumed = run.one_more("paused", rank), run.one_more("resumed", rank)
        run.signal(rank, k + 1, signal.SIGSTOP)
        paused.append(run.seconds_until(stopped))
        run.signal(rank, k + 1, signal.SIGCONT)
        run.seconds_until(resumed)
    yield row(f"1 {engine}: SIGKILL until the death is recorded", noticed, "s", NOTICED)
    yield row(f"5 {engine}: SIGKILL until it trains again, beside the run's start", again, "s", run.started)
    yield row(f"33 {engine}: SIGSTOP until the pause is recorded", paused, "s", PAUSED)
    joined = run.launch("--join", run.name)
    seconds = run.seconds_until(run.trains(WORKERS, 0))
    yield row(f"6 {engine}: `easgd launch --join` until it trains, beside the run's start", [seconds], "s", run.started)
    joined.send_signal(signal.SIGTERM)
    ended = run.seconds_until(lambda: joined.poll() is not None)
    yield row(f"24 {engine}: SIGTERM to a launcher that joined, until it has ended", [ended], "s", GRACE)
    yield row(f"32 {engine}: steps lost by it, of a period", [run.lost_steps(WORKERS, 0)], "steps", PERIOD)


def _pace(run: DisturbedRun, ranks: range) -> float:
    began, before = time.monotonic(), run.clocks(ranks)
    time.sleep(WINDOW_SECONDS)
    return (run.clocks(ranks) - before) / (time.monotonic() - began)


def center_rows(run: DisturbedRun) -> Iterator[Row]:
    """A killed shard, a killed coordinator."""
    import ray

    def pid(name: str) -> int:
        return int(ray.get(ray.get_actor(name, namespace=run.name).pid.remote()))

    back, lost, known = list[float](), list[float](), list[float]()
    for _ in range(REPEAT):
        for name, seconds in (("shard-0", back), ("coordinator", known)):
            restored = run.one_more("restored")
            os.kill(pid(name), signal.SIGKILL)
            seconds.append(run.seconds_until(restored))
        lost += [float(text.split("at most ")[1].split(" s of it")[0]) for text in run.events("restored")[-2:-1]]
    yield row("8 ray: SIGKILL to a shard until it is restored, beside the run's start", back, "s", run.started)
    yield row("8 ray: seconds of the center that are lost, beside the interval", lost, "s", INTERVAL)
    yield row("30 ray: SIGKILL to the coordinator until it is back, beside the run's start", known, "s", run.started)


def ends(run: DisturbedRun, engine: str) -> Iterator[Row]:
    """SIGTERM to one worker, then to the launcher."""
    run.signal(0, 0, signal.SIGTERM)
    run.seconds_until(run.trains(0, 1))
    lost = [run.lost_steps(0, 0)]
    run.process.send_signal(signal.SIGTERM)
    ended = run.seconds_until(lambda: run.process.poll() is not None)
    lost += [run.lost_steps(rank, 0) for rank in range(1, WORKERS - 1)]
    yield row(f"24 {engine}: SIGTERM to the launcher until all has ended", [ended], "s", GRACE)
    yield row(f"32 {engine}: steps lost by workers and the run, of a period", lost, "steps", PERIOD)
