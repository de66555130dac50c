"""Helpers of the training tests: real runs of the command, killed where it hurts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def easgd(tmp_path):
    """Start `python -m easgd …` in its own folder; whatever still lives at the end is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*args: object, **how) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "easgd", *map(str, args)],
            cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ, **how,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_for(what: Callable[[], object], process: subprocess.Popen[str] | None = None, seconds: float = 60.0):
    """Wait until `what()` is true; fail if the process ends before, or after `seconds`."""
    end = time.monotonic() + seconds
    while not (found := what()):
        if process is not None and process.poll() is not None:
            pytest.fail(f"ended with {process.returncode} before: {process.communicate()[1]}")
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)
    return found


def children(pid: int) -> list[int]:
    """The processes that `pid` started and that still live."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found
