"""Launchers as real processes, scripts without torch, and waiting for conditions with a deadline."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

DEADLINE = 200.0

# Each script touches <out>/up-<rank>-<incarnation> with its pid when it is up, and counts steps in a file.
PREAMBLE = """
import os, pathlib, signal, sys, time
rank, incarnation = int(os.environ["EASGD_RANK"]), int(os.environ["EASGD_INCARNATION"])
out = pathlib.Path(os.environ["EASGD_OUT"])
def up():
    scratch = out / f".up-{rank}-{incarnation}"
    scratch.write_text(str(os.getpid()))
    scratch.rename(out / f"up-{rank}-{incarnation}")
def until(name):
    while not (out / name).exists():
        time.sleep(0.01)
"""


def until(condition: Callable[[], Any], what: str, seconds: float = DEADLINE) -> Any:
    """Poll until the condition gives something true; return it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.01)
    raise AssertionError(f"not within {seconds} s: {what}")


def wait_for_all_workers() -> None:
    """Let this process's worker wait for the others: exact numbers need all, and on a busy machine some start late."""
    from easgd.worker import worker

    worker.GATHER_SECONDS = 600.0


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before it was opened, or before it was read
        return False


def written(folder: Path, body: str, name: str) -> tuple[Path, Path, Path]:
    """Write a script; return its folder, the run's own, and its path."""
    folder.mkdir(exist_ok=True)
    script = folder / f"{name}.py"
    script.write_text(PREAMBLE + body)
    return folder, folder / "out", script


def launcher_events(out: Path, event: str | None = None) -> list[dict[str, Any]]:
    """What a launcher has recorded so far."""
    path = out / "records-launcher.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [r for r in map(json.loads, lines) if event in (None, r["event"])]


class RunFiles:
    """What a run tells through the files in its folder, and is told."""

    def __init__(self, out: Path) -> None:
        self.out = out

    def pid(self, rank: int, incarnation: int = 0) -> int:
        """Wait until a worker is up; return its process id."""
        path = self.out / f"up-{rank}-{incarnation}"
        until(path.exists, f"worker {rank}, incarnation {incarnation}, is up")
        return int(path.read_text())

    def pids(self, workers: int = 4) -> list[int]:
        """Wait until all are up."""
        return [self.pid(rank) for rank in range(workers)]

    def events(self, event: str | None = None) -> list[dict[str, Any]]:
        """What the launcher has recorded so far."""
        return launcher_events(self.out, event)

    def touch(self, name: str) -> None:
        """Let scripts that wait for this name go on."""
        (self.out / name).touch()


class Launch(RunFiles):
    """`easgd launch` as a process of its own, in a folder of its own."""

    def __init__(
        self, folder: Path, body: str, *options: str, workers: int = 4, name: str = "train",
        stdin: int = subprocess.DEVNULL,
    ) -> None:  # fmt: skip
        self.folder, out, self.script = written(folder, body, name)
        super().__init__(out)
        where = [] if "--join" in options else ["-n", str(workers), "--out", str(self.out)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "easgd", "launch", *where, *options, str(self.script)],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            # A script without torch gains nothing from a process that imports it first.
            env={**os.environ, "EASGD_FORK": str(int("import torch" in body))},
        )

    @property
    def run(self) -> str:
        """The run's id, from the environment of worker 0."""
        environment = Path(f"/proc/{self.pid(0)}/environ").read_bytes().split(b"\0")
        return (
            next(e for e in environment if e.startswith(b"EASGD_RUN="))
            .decode()
            .partition("=")[2]
            .removeprefix("local:")
        )

    def wait(self) -> tuple[int, str, str]:
        """Return exit code, stdout and stderr."""
        out, err = self.process.communicate(timeout=DEADLINE)
        return self.process.returncode, out, err

    def close(self) -> None:
        """End it if a failed test left it."""
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.communicate()
