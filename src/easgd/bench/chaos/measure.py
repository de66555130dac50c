"""Trains undisturbed and while workers are killed, under easgd, torchrun and torchft, and counts what is left."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

import torch

from easgd.bench import Row, memory_folder
from easgd.bench.chaos.jobs import STOP, elastic
from easgd.bench.nodes import below
from easgd.engines.run import run
from easgd.errors import refuse

RESTARTS = 1000
START_SECONDS = 300.0
Contestant = Callable[[Path, int], AbstractContextManager[None]]


def kills(rate: float, seconds: float, workers: int, seed: int) -> list[tuple[float, int]]:
    """Moments and ranks of the kills: `rate` a minute over all workers, at random moments."""
    dice, moment, found = random.Random(seed), 0.0, list[tuple[float, int]]()
    while (moment := moment + dice.expovariate(rate / 60)) < seconds:
        found.append((moment, dice.randrange(workers)))
    return found


@contextmanager
def under_easgd(folder: Path, workers: int) -> Iterator[None]:
    """`easgd.run`, on a thread; it ends when its workers are told to stop."""
    thread = threading.Thread(target=run, args=(elastic, workers, "local", (str(folder),), RESTARTS), daemon=True)
    thread.start()
    yield
    thread.join(120)


@contextmanager
def under_torchrun(folder: Path, workers: int) -> Iterator[None]:
    """torchrun with as many restarts."""
    what = ["--nproc-per-node", str(workers), "--max-restarts", str(RESTARTS), "--monitor-interval", "0.1"]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", *what, "-m", "easgd.bench.chaos.jobs"]
    with open(folder / "torchrun.log", "wb") as log:
        process = subprocess.Popen([*command, str(folder)], stdout=log, stderr=log, start_new_session=True)
        try:
            yield
            with suppress(subprocess.TimeoutExpired):  # what counts has been counted
                process.wait(120)
        finally:
            # torchrun gives every rank a session of its own: its process group does not hold them.
            for pid in below(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


LIGHTHOUSE = """
import sys
from torchft.coordination import LighthouseServer
server = LighthouseServer(bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=200, heartbeat_timeout_ms=1000)
print(server.address().rpartition(":")[2], flush=True)
sys.stdin.read()
"""


@contextmanager
def lighthouse(log: Path) -> Iterator[str]:
    """torchft's server that replicas find each other by; yields its address."""
    with open(log, "wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", LIGHTHOUSE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True
        )
    try:
        assert process.stdout is not None
        if not (port := process.stdout.readline().strip()):
            raise refuse("chaos", "torchft", "its lighthouse does not start", f"read {log.read_text()[-200:]!r}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.communicate()


@contextmanager
def under_torchft(folder: Path, workers: int) -> Iterator[None]:
    """torchft's lighthouse, and a process for each replica, which is started again when it dies."""
    with lighthouse(folder / "lighthouse.log") as address:
        yield from _replicas(folder, workers, address)


def _replicas(folder: Path, workers: int, address: str) -> Iterator[None]:
    ended, command = threading.Event(), [sys.executable, "-m", "easgd.bench.chaos.jobs", str(folder)]

    def keep(rank: int) -> None:
        with open(folder / f"replica-{rank}.log", "ab") as log:
            while not ended.is_set():
                process = subprocess.Popen([*command, str(rank), address], stdout=log, stderr=log)
                while process.poll() is None:
                    if ended.wait(0.05):
                        process.kill()

    threads = [threading.Thread(target=keep, args=(rank,), daemon=True) for rank in range(workers)]
    try:
        for thread in threads:
            thread.start()
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(60)


def reached_by_easgd(folder: Path, workers: int) -> int:
    """Steps of all workers and incarnations that an exchange has brought to the center."""
    return sum(max(0, int(path.read_bytes() or 0)) for path in folder.glob("reached-*"))


def reached_by_torchrun(folder: Path, workers: int) -> int:
    """Steps of all ranks that are in the last checkpoint."""
    path = folder / "saved.pt"
    return workers * int(torch.load(path, weights_only=True)["step"]) if path.exists() else 0


CONTESTANTS: dict[str, tuple[Contestant, Callable[[Path, int], int]]] = {
    "EASGD, killed workers started again": (under_easgd, reached_by_easgd),
    "DDP restarted by torchrun": (under_torchrun, reached_by_torchrun),
    "LocalSGD of torchft": (under_torchft, reached_by_easgd),
}


def contestants() -> list[str]:
    """Who takes part: torchft where it is installed."""
    return [name for name in CONTESTANTS if "torchft" not in name or find_spec("torchft") is not None]


def steps(name: str, workers: int, seconds: float, plan: list[tuple[float, int]]) -> int:
    """Train for so many seconds while the plan's workers are killed; return the steps that have reached the center."""
    contest, count = CONTESTANTS[name]
    with tempfile.TemporaryDirectory(dir=memory_folder()) as place:
        folder = Path(place)
        with contest(folder, workers):
            _await([folder / f"pid-{rank}" for rank in range(workers)], name)
            before, began = count(folder, workers), time.monotonic()
            for moment, rank in plan:
                time.sleep(max(0.0, began + moment - time.monotonic()))
                with suppress(ProcessLookupError):  # it is being started again: there is nothing to kill
                    os.kill(int((folder / f"pid-{rank}").read_text()), signal.SIGKILL)
            time.sleep(max(0.0, began + seconds - time.monotonic()))
            after = count(folder, workers)
            (folder / STOP).touch()
        return after - before


def _await(paths: list[Path], name: str) -> None:
    end = time.monotonic() + START_SECONDS
    while not all(path.exists() for path in paths):
        if time.monotonic() > end:
            raise refuse("chaos", name, f"it does not train within {START_SECONDS:g} s", "try on an idle machine")
        time.sleep(0.05)


def rows(workers: int = 2, seconds: float = 40.0, rate: float = 6.0, seed: int = 0) -> list[Row]:
    """Goodput of each: the steps that reached the center under kills, over those of the same time without any.

    The reference is the mean of a run before and one after: the machine's own speed drifts.
    """
    plan, found = kills(rate, seconds, workers, seed), []
    for name in contestants():
        before, left, after = (steps(name, workers, seconds, which) for which in ([], plan, []))
        free = (before + after) / 2
        case = f"{name}: {workers} workers, {len(plan)} kills in {seconds:g} s"
        found.append(Row(case, left, "steps", free, left / max(1, free)))
    return found
