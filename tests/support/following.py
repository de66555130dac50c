"""Waiting for a run to come somewhere, and finding its processes."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest


def wait_for(what: Callable[[], object], process: subprocess.Popen[str] | None = None, seconds: float = 200.0):
    """Wait until `what()` is true; fail if the process ends before, or after `seconds`."""
    end = time.monotonic() + seconds
    while not (found := what()):
        if process is not None and process.poll() is not None:
            pytest.fail(f"ended with {process.returncode} before: {process.communicate()[1]}")
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.01)
    return found


def children(pid: int) -> list[int]:
    """The processes that `pid` started and that still live, without the one that its workers are forked from."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z" and b"local.template" not in _command(stat.parent):
            found.append(int(stat.parent.name))
    return found


def _command(process: Path) -> bytes:
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""
