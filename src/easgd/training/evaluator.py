"""Measures the snapshots of a run, in their order: after training, or beside it in a process of its own.

    python -m easgd.training.evaluator RUN

ends when the run says that no more snapshots come, or when whoever started it is gone.
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
from easgd.errors import SettingError
from easgd.training.folder import RunFolder, read_lines
from easgd.training.task import Task

LAST = "last"
POLL = 0.05


def leave(folder: RunFolder, number: int, snapshot: dict[str, Any]) -> bool:
    """Put a snapshot where the evaluator finds it; False if the disk does not take it."""
    try:
        checkpoint.save(folder.snapshots / f"{number:06d}.safetensors", snapshot)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        print(f"easgd: warning: a snapshot of the center was not written ({why}); going on", file=sys.stderr)
        return False
    return True


def waiting(folder: RunFolder) -> list[Path]:
    """The snapshots that nobody has measured, the oldest first."""
    return sorted(folder.snapshots.glob("[0-9]*.safetensors"))


def measure_waiting(folder: RunFolder, task: Task, told: Callable[[dict[str, Any]], None] | None = None) -> int:
    """Measure all that wait; return how many."""
    count = 0
    for path in waiting(folder):
        try:
            snapshot = checkpoint.load(path)
        except SettingError as error:
            print(f"easgd: warning: {error}", file=sys.stderr)
            path.unlink(missing_ok=True)
            continue
        row = {**snapshot["facts"], **task.measure(snapshot["center"])}
        with open(folder.evaluations_path, "a") as file:
            file.write(json.dumps(row) + "\n")
        path.unlink()
        count += 1
        if told is not None:
            told(row)
    return count


def numbers_used(folder: RunFolder) -> int:
    """How many snapshots the run has had so far."""
    return len(list(read_lines(folder.evaluations_path))) + len(waiting(folder))


def _follow_parent() -> None:
    """End with whoever holds the other end of our standard input."""

    def watch() -> None:
        while sys.stdin.buffer.read(1):
            pass
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def main(path: str) -> None:
    """Measure snapshots as they come."""
    torch.set_num_threads(1)
    os.nice(5)  # the workers come first
    _follow_parent()
    folder = RunFolder(path)
    task = Task(folder.config())
    while not (measure_waiting(folder, task) == 0 and (folder.snapshots / LAST).exists()):
        time.sleep(POLL)
    measure_waiting(folder, task)  # what came between the two looks


if __name__ == "__main__":
    main(sys.argv[1])
    os._exit(0)  # the thread that waits for the parent's end cannot be joined
