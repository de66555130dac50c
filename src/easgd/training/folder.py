"""The folder of a training run: its files, each readable at any moment, also after a kill.

faults.json             the plan of faults, where there is one
config.json             the resolved settings; `easgd train --config` takes them back
environment.json        versions, machine, revision, command, start
evaluations.jsonl       one line per evaluation of the center
records-*.jsonl         one line per step and event (`easgd.records`)
checkpoints/            the last two states (`easgd.training.checkpoints`)
snapshots/              centers to be evaluated
model.safetensors       the final center, under the names of the model's own state dict
status.json             running, finished, interrupted or failed
"""

from __future__ import annotations

import fcntl
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from easgd.console import warn_once
from easgd.errors import SettingError, refuse
from easgd.faults import Fault, as_data, load_plan
from easgd.files import read_json, read_json_lines, reason, write_json
from easgd.machine import usable_cores
from easgd.training.config import Config


class RunFolder:
    """The paths of a run and its small files."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.evaluations_path = self.path / "evaluations.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.snapshots = self.path / "snapshots"
        self.model = self.path / "model.safetensors"

    def create(self, config: Config, faults: Sequence[Fault] = ()) -> None:
        """Create the folder of a new run; refuse one that holds another run."""
        if (self.path / "config.json").exists():
            remedy = f"resume it with `easgd train --resume {self.path}`, or choose another folder"
            raise refuse("out", self.path, "it holds a run already", remedy)
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self.snapshots.mkdir(exist_ok=True)
            # The settings come last: a folder without them holds no run yet.
            write_json(self.path / "environment.json", environment())
            self.set_status("running")
            if faults:
                write_json(self.path / "faults.json", as_data(faults))
            write_json(self.path / "config.json", config.as_dict())
        except OSError as error:
            raise refuse("out", self.path, reason(error), "choose a folder that can be written") from error

    def write_config(self, config: Config) -> None:
        """Write the changed settings of a resumed run."""
        self._write("config.json", config.as_dict())

    def config(self) -> Config:
        path = self.path / "config.json"
        if not path.exists():
            raise refuse("run", self.path, "it holds no config.json", "give the folder of a run")
        return Config.load(path)

    def faults(self) -> list[Fault]:
        """The run's plan of faults; empty where it has none."""
        path = self.path / "faults.json"
        return load_plan(path) if path.exists() else []

    @property
    def status(self) -> dict[str, Any]:
        """The content of status.json; a run that was killed still says "running"."""
        return read_json(self.path / "status.json") or {"state": "running", "reason": "", "seconds": 0.0}

    def set_status(self, state: str, reason: str = "", **more: Any) -> None:
        """Write status.json; only warn if the disk does not take it."""
        data = {"state": state, "reason": reason, **more}
        if not self._write("status.json", data):
            # An old status would be wrong. Without it the disk may have room for the new one.
            with suppress(OSError):
                (self.path / "status.json").unlink()
                write_json(self.path / "status.json", data)

    def _write(self, name: str, data: dict[str, Any]) -> bool:
        try:
            write_json(self.path / name, data)
        except OSError as error:
            warn_once(f"{self.path / name} could not be written ({reason(error)}); going on")
            return False
        return True

    def evaluations(self) -> list[dict[str, Any]]:
        """Return all whole lines of evaluations.jsonl, in the order of time."""
        lines = [line for line in read_json_lines(self.evaluations_path) if "time" in line]
        return sorted(lines, key=lambda line: float(line["time"]))


def default_folder(config: Config) -> Path:
    """Return a new folder under runs/, named after method, data and time."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = f"{config.method_class.key}-{config.data.removesuffix('.easgd').replace('/', '-')}-{stamp}"
    path, number = Path("runs") / name, 1
    while path.exists():
        path, number = Path("runs") / f"{name}-{number}", number + 1
    return path


def environment() -> dict[str, Any]:
    """Describe the machine and the code."""
    from importlib.metadata import version

    import torch

    return {
        "easgd": version("easgd"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": usable_cores(),
        "git": git_revision(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def git_revision() -> str | None:
    """Return the git revision of this code, marked if it was changed; None outside a repository."""
    here = Path(__file__).parent
    with suppress(OSError, subprocess.SubprocessError):
        out = subprocess.run(
            ["git", "-C", str(here), "describe", "--always", "--dirty", "--abbrev=12"],
            capture_output=True, text=True, timeout=5, check=True,
        )  # fmt: skip
        return out.stdout.strip() or None
    return None


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock a folder for the length of the block: two programs must not write the same runs at once."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("a")
    except OSError as error:
        raise refuse("out", folder, reason(error), "choose a folder that can be written") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise refuse("out", folder, "another easgd is at work in it", "wait, or choose another folder") from None
        yield


def check_free(path: Path) -> None:
    """Refuse a path that is a file."""
    if path.exists() and not path.is_dir():
        raise SettingError(f"out = {path}: it is a file; name a folder")
