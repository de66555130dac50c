"""The runs of a comparison: each a process of its own, or several in one that share gradients; read as JSON lines."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from easgd.files import write_json
from easgd.launch.process import Lifeline, describe_exit, sigint_blocked
from easgd.training.config import Config
from easgd.training.folder import RunFolder

Lines = queue.Queue[tuple["Job", dict[str, Any] | None]]


@dataclass(eq=False)
class Job:
    """A run and its state: waiting, running, kept (finished earlier), finished, failed or interrupted."""

    config: Config
    path: Path
    state: str = "waiting"
    reason: str = ""
    progress: float = 0.0
    error: float | None = None
    began: float = 0.0
    seconds: float = 0.0
    """real seconds spent in this session"""
    first: float = 0.0
    """progress when this session began: a resumed run has some"""

    @property
    def name(self) -> str:
        return self.path.name

    def expected(self) -> float | None:
        """Estimate the seconds of the whole run from this session; None while that is not possible."""
        gained = self.progress - self.first
        spent = self.seconds if self.seconds else time.monotonic() - self.began
        return spent / gained if self.began and gained > 0.01 else None


class Process:
    """The process of a job, or of several that share their gradients (`training.shared_gradients`)."""

    def __init__(self, jobs: Sequence[Job], logs: Path, lifeline: Lifeline, lines: Lines) -> None:
        self.jobs, self._lines = jobs, lines
        self._tail: deque[str] = deque(maxlen=20)
        logs.mkdir(parents=True, exist_ok=True)
        self._log = (logs / f"{jobs[0].name}.log").open("a", encoding="utf-8")
        child = [sys.executable, "-m", "easgd.engines.local.child", str(os.getpid()), str(lifeline.read)]
        command = [*child, "module", *_command(jobs, logs)]
        with sigint_blocked():
            # A session of its own: the terminal's Ctrl-C reaches the comparison only, which then decides.
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                encoding="utf-8", errors="replace", start_new_session=True, pass_fds=(lifeline.read,),
            )  # fmt: skip
        for job in jobs:
            job.state, job.began = "running", time.monotonic()
        self._readers = [
            threading.Thread(target=self._read, args=(stream,), daemon=True)
            for stream in (self._process.stdout, self._process.stderr)
        ]
        for reader in self._readers:
            reader.start()
        threading.Thread(target=self._wait, daemon=True).start()

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            event = None
            if line.startswith("{"):
                with suppress(ValueError):
                    event = json.loads(line)
            if isinstance(event, dict) and "event" in event:
                named = (job for job in self.jobs if job.name == event.get("run"))
                self._lines.put((next(named, self.jobs[0]), event))
            else:
                with suppress(OSError, ValueError):
                    self._log.write(line)
                    self._log.flush()
                if line.strip():
                    self._tail.append(line.strip())

    def _wait(self) -> None:
        self._process.wait()
        for reader in self._readers:
            reader.join(5)  # a grandchild may hold the pipe open
        for job in self.jobs:
            self._lines.put((job, None))

    def interrupt(self) -> None:
        """Ask the run to save its state and end."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Kill the run and everything it started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def conclude(self, job: Job, stopped: bool) -> None:
        """Set the state of one of the jobs, now that the process has ended."""
        self._log.close()
        code = self._process.returncode
        job.seconds = time.monotonic() - job.began
        state = RunFolder(job.path).status.get("state")
        if code == 0 and state == "finished":
            job.state, job.progress = "finished", 1.0
        elif stopped or code == 130:
            job.state, job.reason = "interrupted", "stopped on request"
        else:
            job.state = "failed"
            job.reason = self._tail[-1] if self._tail else describe_exit(code)


def _command(jobs: Sequence[Job], logs: Path) -> list[str]:
    """Return the process's command. The run creates its own folder, so its settings are written beside the log."""
    settings = [logs / f"{job.name}.json" for job in jobs]
    for job, file in zip(jobs, settings, strict=True):
        write_json(file, job.config.as_dict())
    if len(jobs) > 1:
        pairs = ([str(job.path), str(file)] for job, file in zip(jobs, settings, strict=True))
        return ["easgd.training.shared_gradients", *(word for pair in pairs for word in pair)]
    (job,), (file,) = jobs, settings
    begun = (job.path / "config.json").exists()
    what = ["--resume", str(job.path)] if begun else ["--config", str(file), "--out", str(job.path)]
    return ["easgd", "train", *what, "--json"]
