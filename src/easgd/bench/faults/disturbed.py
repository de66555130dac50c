"""A run of `easgd launch` that is disturbed, and what can be seen of it from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from easgd.bench.faults.job import STOP
from easgd.errors import refuse
from easgd.files import read_json_lines
from easgd.launch.run_directory import live_runs
from easgd.records import Event, Step, parse

START_SECONDS = 300.0
POLL_SECONDS = 0.002


class DisturbedRun:
    """A launcher and its workers; `seconds_until` measures how long something takes."""

    def __init__(self, folder: Path, workers: int, *options: str) -> None:
        self.folder, self.out, self.workers = folder, folder / "out", workers
        self.process = self.launch("-n", str(workers), "--restarts", "1000", "--out", str(self.out), *options)
        self.started = self.seconds_until(lambda: all(self.at(rank, 0)[1] for rank in range(workers)))
        self.name = next(name for name, about in live_runs().items() if about.pid == self.process.pid)

    def launch(self, *options: str) -> subprocess.Popen[bytes]:
        """Start a launcher."""
        command = [sys.executable, "-m", "easgd", "launch", *options, "-m", "easgd.bench.faults.job", str(self.folder)]
        with open(self.folder / "launchers.log", "ab") as log:
            return subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, start_new_session=True)

    def seconds_until(self, condition: Callable[[], object]) -> float:
        """Return how long it takes until the condition holds."""
        began = time.monotonic()
        while not condition():
            if time.monotonic() - began > START_SECONDS:
                raise refuse("faults", self.folder, f"nothing for {START_SECONDS:g} s", "try on an idle machine")
            time.sleep(POLL_SECONDS)
        return time.monotonic() - began

    def at(self, rank: int, incarnation: int) -> tuple[int, int]:
        """Return a worker's process id and clock; zeros before its first step."""
        with suppress(OSError, ValueError):
            pid, clock = (self.folder / f"at-{rank}-{incarnation}").read_text().split()
            return int(pid), int(clock)
        return 0, 0

    def clocks(self, ranks: range) -> int:
        """Steps of these workers' first incarnations."""
        return sum(self.at(rank, 0)[1] for rank in ranks)

    def signal(self, rank: int, incarnation: int, number: int) -> None:
        os.kill(self.at(rank, incarnation)[0], number)

    def events(self, kind: str, rank: int | None = None) -> list[str]:
        """Return the details of what the launcher has recorded."""
        found = [line for line in read_json_lines(self.out / "records-launcher.jsonl") if line["event"] == kind]
        return [str(line["detail"]) for line in found if rank is None or line["worker"] == rank]

    def paused(self, rank: int) -> bool:
        """Whether a pause is the last that was recorded of a worker."""
        lines = [line for line in read_json_lines(self.out / "records-launcher.jsonl") if line["worker"] == rank]
        return bool(lines) and lines[-1]["event"] == "paused"

    def one_more(self, kind: str, rank: int | None = None) -> Callable[[], bool]:
        """Return the condition that another event of this kind is recorded after this call."""
        known = len(self.events(kind, rank))
        return lambda: len(self.events(kind, rank)) > known

    def trains(self, rank: int, incarnation: int) -> Callable[[], bool]:
        """Return the condition that this incarnation trains."""
        return lambda: self.at(rank, incarnation)[1] > 0

    def lost_steps(self, rank: int, incarnation: int) -> float:
        """Steps of a worker that has ended which no exchange has brought to the center."""
        lines = (self.out / f"records-{rank}-{incarnation}.jsonl").read_bytes().splitlines()
        records = [record for record in map(parse, lines) if record is not None]
        steps = [record for record in records if isinstance(record, Step)]
        reached = [record.clock for record in steps if record.staleness is not None]
        reached += [int(r.detail.split()[1]) for r in records if isinstance(r, Event) and r.event == "last exchange"]
        # A signal may come between a step and its record: then one step more has reached the center.
        return max(0, steps[-1].clock + 1 - max(reached, default=0))

    def close(self) -> None:
        """End it, also if a measurement failed."""
        with suppress(OSError):
            (self.folder / STOP).touch()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def disturbed(folder: Path, workers: int, *options: str) -> Iterator[DisturbedRun]:
    """Start a run, and end it with the block."""
    run = DisturbedRun(folder, workers, *options)
    try:
        yield run
    finally:
        run.close()
