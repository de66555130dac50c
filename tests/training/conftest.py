"""Helpers of the training tests: real runs of the command, killed where it hurts."""

from __future__ import annotations

import os
import subprocess
import sys

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
