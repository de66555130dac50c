"""Scripts under `easgd launch`, in folders of their own; a framework that is not installed skips its tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass
class Ended:
    """A launch that has ended."""

    code: int
    output: str
    folder: Path

    def told(self, rank: int) -> dict[str, Any]:
        """What the script of a worker wrote to `told-RANK.json`."""
        path = self.folder / f"told-{rank}.json"
        assert path.exists(), self.output
        return json.loads(path.read_text())


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    (tmp_path / "shm").mkdir()
    monkeypatch.setenv("EASGD_SHARED", str(tmp_path / "shm"))

    def run(body: str, *options: str, workers: int = 2) -> Ended:
        script = tmp_path / "train.py"
        script.write_text(body.replace("{folder}", str(tmp_path)))  # a cluster's worker has a folder of its own
        command = [sys.executable, "-m", "easgd", "launch", "-n", str(workers), "--out", "out", *options, str(script)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline"}
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, check=False)
        return Ended(done.returncode, done.stdout + done.stderr, tmp_path)

    return run
