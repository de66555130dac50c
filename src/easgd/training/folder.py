"""The folder of a training run: what is written where, so that a run killed at any moment leaves something to read.

config.json             the resolved settings; `easgd train --config` takes them back
environment.json        versions, machine, revision, command, start
evaluations.jsonl       one line per evaluation of the center
records-*.jsonl         one line per step and event (`easgd.records`)
checkpoints/            the last two states (`easgd.training.checkpoints`)
snapshots/              centers that wait to be evaluated
model.safetensors       the final center, under the names of the model's own state dict
status.json             running, finished, interrupted or failed
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from easgd.errors import SettingError, refuse
from easgd.training.config import Config

if TYPE_CHECKING:
    from torch import Tensor


class RunFolder:
    """Paths of a run, and the small files in it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.evaluations_path = self.path / "evaluations.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.snapshots = self.path / "snapshots"
        self.model = self.path / "model.safetensors"

    def create(self, config: Config) -> None:
        """Begin a new run here; a folder that holds another run is refused."""
        if (self.path / "config.json").exists():
            remedy = f"resume it with `easgd train --resume {self.path}`, or choose another folder"
            raise refuse("out", self.path, "it holds a run already", remedy)
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self.snapshots.mkdir(exist_ok=True)
            # The settings come last: a folder without them holds no run yet.
            write_json(self.path / "environment.json", environment())
            self.set_status("running")
            write_json(self.path / "config.json", config.as_dict())
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise refuse("out", self.path, why, "choose a folder that can be written") from error

    def write_config(self, config: Config) -> None:
        """Write changed settings of a run that goes on."""
        write_json(self.path / "config.json", config.as_dict())

    def config(self) -> Config:
        """Read the settings back."""
        path = self.path / "config.json"
        if not path.exists():
            raise refuse("run", self.path, "it holds no config.json", "give the folder of a run")
        return Config.load(path)

    @property
    def status(self) -> dict[str, Any]:
        """How the run stands; a run that was killed still says "running"."""
        return read_json(self.path / "status.json") or {"state": "running", "reason": "", "seconds": 0.0}

    def set_status(self, state: str, reason: str = "", **more: Any) -> None:
        """Write how the run stands."""
        write_json(self.path / "status.json", {"state": state, "reason": reason, **more})

    def evaluations(self) -> list[dict[str, Any]]:
        """All whole lines of evaluations.jsonl, in the order of time."""
        lines = [line for line in read_lines(self.evaluations_path) if "time" in line]
        return sorted(lines, key=lambda line: float(line["time"]))


def default_folder(config: Config) -> Path:
    """A new folder under runs/: method, data and the moment."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    name = f"{config.method_class.key}-{config.data.removesuffix('.easgd').replace('/', '-')}-{stamp}"
    path, number = Path("runs") / name, 1
    while path.exists():
        path, number = Path("runs") / f"{name}-{number}", number + 1
    return path


def write_model(path: Path, state: dict[str, Tensor]) -> None:
    """Write a state dict as plain safetensors, whole or not at all; a disk that does not take it costs a warning."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # safetensors refuses tensors that share memory or lie in another order.
        save_file({name: tensor.clone().contiguous() for name, tensor in state.items()}, scratch)
        os.replace(scratch, path)
    except (OSError, SafetensorError) as error:
        scratch.unlink(missing_ok=True)
        print(f"easgd: warning: the center could not be saved in {path}: {error}", file=sys.stderr)


def write_json(path: Path, data: Any) -> None:
    """Write a small file so that a reader finds the old or the new one, never a half."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps(data, indent=2) + "\n")
    os.replace(scratch, path)


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a small file; None if it is missing or broken."""
    with suppress(OSError, ValueError):
        data = json.loads(path.read_text())
        return data if isinstance(data, dict) else None
    return None


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the whole lines of a file of JSON lines; a torn last one is left out."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        for line in file:
            with suppress(ValueError):
                data = json.loads(line)
                if isinstance(data, dict):
                    yield data


def environment() -> dict[str, Any]:
    """What a reader needs to know of the machine and the code."""
    from importlib.metadata import version

    import torch

    return {
        "easgd": version("easgd"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "git": git_revision(),
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


def git_revision() -> str | None:
    """The revision of the code that runs, with a mark if it was changed; None outside a repository."""
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
    """Hold a folder for the length of the block: two programs must not write the same runs at once."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / ".lock").open("a")
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise refuse("out", folder, why, "choose a folder that can be written") from error
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
