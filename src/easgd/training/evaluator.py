"""Measures the snapshots of a run, in their order: after training, or beside it in a process of its own.

    python -m easgd.training.evaluator RUN

ends when the run marks that no more snapshots come, or when the process that started it has ended.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from easgd import checkpoint
from easgd.console import warn, warn_once
from easgd.errors import SettingError
from easgd.files import read_json_lines, reason
from easgd.training.checkpoints import LineFile
from easgd.training.folder import RunFolder
from easgd.training.task import Task

LAST = "last"
POLL = 0.05


def save_snapshot(folder: RunFolder, number: int, snapshot: dict[str, Any]) -> bool:
    """Write a snapshot for the evaluator; False, with one warning, if the disk does not take it."""
    try:
        checkpoint.save(folder.snapshots / f"{number:06d}.safetensors", snapshot)
    except OSError as error:
        warn_once(f"snapshots of the center are not written in {folder.snapshots} ({reason(error)}); going on")
        return False
    return True


def waiting(folder: RunFolder) -> list[Path]:
    """Return the snapshots that are not measured yet, the oldest first."""
    return sorted(folder.snapshots.glob("[0-9]*.safetensors"))


def measure_waiting(folder: RunFolder, task: Task, told: Callable[[dict[str, Any]], None] | None = None) -> int:
    """Measure all snapshots that wait, call `told` with each row, and return how many there were."""
    if not (paths := waiting(folder)):
        return 0
    count, file = 0, LineFile(folder.evaluations_path)
    for path in paths:
        try:
            snapshot = checkpoint.load(path)
        except SettingError as error:
            warn(str(error))
            path.unlink(missing_ok=True)
            continue
        row = {**snapshot["facts"], **task.measure(snapshot["center"])}
        file.write(json.dumps(row))
        file.flush()
        path.unlink()  # on a full disk this makes room for the row, which is then written by the next flush
        count += 1
        if told is not None:
            told(row)
    file.close()
    return count


def numbers_used(folder: RunFolder) -> int:
    """Return how many snapshots the run has had so far."""
    return len(list(read_json_lines(folder.evaluations_path))) + len(waiting(folder))


def _follow_parent() -> None:
    """End this process when the other end of its standard input is closed: its parent has ended."""

    def watch() -> None:
        while sys.stdin.buffer.read(1):
            pass
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def main(path: str) -> None:
    torch.set_num_threads(1)
    os.nice(5)  # the workers come first
    _follow_parent()
    folder = RunFolder(path)
    task = Task(folder.config())
    while not (measure_waiting(folder, task) == 0 and (folder.snapshots / LAST).exists()):
        time.sleep(POLL)
    measure_waiting(folder, task)  # written between the measuring and the check


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)  # the thread that waits for the parent's end cannot be joined
