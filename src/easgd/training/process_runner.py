"""A training run on real processes: the workers train, this process observes.

It takes snapshots of the center on a grid of time, has them measured, opens checkpoints, and shows what the records
say. Workers never wait for an evaluation; a checkpoint is a barrier between two steps (`training_worker.py`).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from torch import Tensor

from easgd import checkpoint
from easgd.engines.run import Result, run
from easgd.faults import Fault
from easgd.files import atomic, parse_json_line, read_json_lines
from easgd.launch.observer import CenterView
from easgd.machine import usable_cores
from easgd.records import Record, parse
from easgd.training.checkpoints import SUFFIX, Checkpoints
from easgd.training.config import Config
from easgd.training.evaluation_grid import Grid
from easgd.training.evaluator import LAST, measure_waiting, numbers_used, save_snapshot, waiting
from easgd.training.folder import RunFolder
from easgd.training.monitor import Monitor
from easgd.training.tail import Tail
from easgd.training.task import Task
from easgd.training.training_worker import FINAL, STOP, work
from easgd.training.view import View

BARRIER_SECONDS = 2.0
"""A checkpoint barrier waits this long plus four steps; one that failed is repeated after five times that, and then
waits twice as long as before: a large state or a busy machine may need more."""
LONGEST_BARRIER = 64.0


class ProcessRunner:
    """One run of the engines "local" and "ray"."""

    def __init__(self, config: Config, folder: RunFolder, view: View) -> None:
        self.config, self.folder, self.view = config, folder, view
        self.task = Task(config)
        self.monitor = Monitor()
        self.checkpoints = Checkpoints(folder.checkpoints)
        self.records: Tail[Record] = Tail(folder.path, "records-*.jsonl", parse)
        self.rows = Tail(folder.path, folder.evaluations_path.name, parse_json_line)
        self.elapsed: float | None = None
        self.seconds = 0.0
        self.stop_requested = False
        self.result: Result | None = None
        self.live = config.evaluate == "live" or config.target is not None
        if config.evaluate == "auto":
            self.live = self.live or usable_cores() > (config.workers or 1)
        self._evaluator: subprocess.Popen[bytes] | None = None
        self._snapshots = 0
        self.grid, self._point = Grid.of(config, self.task.most_steps), -1
        self._draft: Path | None = None
        self._barrier = BARRIER_SECONDS
        self._target_reached = False

    # running ---------------------------------------------------------------------------------------------------

    def load(self) -> bool:
        """Go on from the newest checkpoint: remove what the files say about the time after it."""
        parts = self.checkpoints.load()
        self.elapsed = 0.0 if parts is None else float(parts["progress"]["time"])
        for path in (self.folder.evaluations_path, *self.folder.path.glob("records-*.jsonl")):
            forget_after(path, self.elapsed if parts is not None else -1.0)
        for path in waiting(self.folder):
            with contextlib.suppress(Exception):
                if parts is not None and checkpoint.load(path)["facts"]["time"] <= self.elapsed:
                    continue
            path.unlink(missing_ok=True)
        if parts is not None:
            self.monitor.load_state_dict(parts["progress"]["monitor"])
            self._point = self.grid.point(self.monitor.time, self.monitor.steps)
        self.records.skip()
        return parts is not None

    def run(self) -> tuple[str, str]:
        """Train, then measure what is left; return how the run ended and why."""
        for leftover in (self.folder.path / STOP, self.folder.snapshots / LAST):
            leftover.unlink(missing_ok=True)
        self._snapshots = numbers_used(self.folder)
        self.rows.skip()
        if self._point < 0:
            self._snapshot_start()
        if self.live:
            self._evaluator = start_evaluator(self.folder)
        began = time.monotonic() - float(self.folder.status.get("seconds") or 0.0)
        self._next_checkpoint = time.monotonic() + self.config.checkpoint_every
        self.result = run(
            work, self.config.workers or 1, self.config.engine, (self.config.as_dict(), str(self.folder.path),
            self.elapsed is not None), self.config.restarts, self.config.schedule, self.folder.path, self, self.elapsed,
            history=self.config.history, faults=self._faults(),
        )  # fmt: skip
        self._measure_rest()
        self.seconds = time.monotonic() - began
        return self._verdict()

    def _faults(self) -> list[Fault]:
        """What is left of the plan of faults: a resumed run has some of it behind it."""
        return [fault for fault in self.folder.faults() if fault.time >= (self.elapsed or 0.0)]

    def _verdict(self) -> tuple[str, str]:
        assert self.result is not None
        codes = self.result.exit_codes
        if all(codes):
            return ("interrupted", "stopped on request") if self.stop_requested else ("failed", f"all died: {codes}")
        died = sum(1 for code in codes if code)
        loss = f"; {died} of {len(codes)} workers died" if died else ""
        if self.stop_requested:
            return "interrupted", f"stopped on request{loss}"
        return "finished", f"{self.monitor.steps} steps in {self.monitor.time:.1f} s{loss}"

    def center(self) -> dict[str, Tensor] | None:
        """Return the final center if the engine could not save it; else rename its file and return None."""
        try:
            os.replace(self.folder.path / "center.safetensors", self.folder.model)
        except FileNotFoundError:
            return None if self.result is None else self.result.center
        return None

    def close(self) -> None:
        """End the evaluator, whose unmeasured snapshots stay in the run's folder."""
        if self._evaluator is not None and self._evaluator.poll() is None:
            self._evaluator.kill()
            self._evaluator.wait()

    # observing -------------------------------------------------------------------------------------------------

    def look(self, center: CenterView) -> None:
        """Read records, take a snapshot if one is due, see to the checkpoint, show what the evaluator found."""
        self._read()
        self._snapshot(center)
        self._checkpoint(center, time.monotonic())
        self._show_rows()
        self.view.progress(self.progress(), self.monitor, self.monitor.time)

    def ended(self, center: CenterView) -> None:
        """Take the last snapshot, and make a checkpoint of the states that the workers left."""
        self._read()
        slots = center.snapshot()
        if slots is None:
            return
        self._save_snapshot(center.named(slots), center.version)
        final = self.folder.checkpoints / FINAL
        if final.exists():
            number = self.checkpoints.next_number()
            shutil.rmtree(self.checkpoints.draft(number), ignore_errors=True)
            os.replace(final, self.checkpoints.draft(number))
            self._complete(number, {"slots": slots, "version": center.version, "clocks": center.clocks})

    def _read(self) -> None:
        for record in self.records.read():
            self.monitor.take(record)

    def progress(self) -> float:
        """Return how much of the budget is used."""
        by_time = self.monitor.time / self.config.seconds if self.config.seconds else 0.0
        return min(1.0, max(by_time, self.monitor.steps / self.task.most_steps))

    def _snapshot(self, center: CenterView) -> None:
        """Take the center when a point of the grid has passed; points that passed unseen are left out."""
        point = self.grid.point(self.monitor.time, self.monitor.steps)
        if point > self._point and (slots := center.snapshot()) is not None:
            self._save_snapshot(center.named(slots), center.version)
            self._point = point

    def _snapshot_start(self) -> None:
        """Have the initial point measured: when the first records are read, the center may have moved already."""
        parameters = self.task.model().named_parameters()
        self._save_snapshot({name: parameter.detach() for name, parameter in parameters}, 0)
        self._point = 0

    def _save_snapshot(self, state: dict[str, Tensor], version: int) -> None:
        facts = {
            "time": self.monitor.time, "steps": self.monitor.steps, "version": version, "bytes": self.monitor.bytes
        }  # fmt: skip
        if save_snapshot(self.folder, self._snapshots, {"facts": facts, "center": state}):
            self._snapshots += 1

    def _show_rows(self) -> None:
        """Show what the evaluator has measured, and stop the workers when the target is reached."""
        for row in self.rows.read():
            self.view.evaluated(row, self.progress())
            self._target_reached |= self.config.target is not None and row["test_error"] <= self.config.target
        if self._target_reached:
            with contextlib.suppress(OSError):  # on a full disk: try again at the next turn
                (self.folder.path / STOP).touch()

    def _measure_rest(self) -> None:
        """Measure the snapshots that are left when training has ended: wait for the evaluator, or measure here."""
        total, done = len(waiting(self.folder)), 0

        def show(row: dict[str, Any]) -> None:
            nonlocal done
            done += 1
            self.view.evaluated(row, self.progress(), (done, max(done, total)))

        if total > 5:
            self.view.note(f"measuring {total} snapshots of the center")
        if self._evaluator is not None:
            try:
                (self.folder.snapshots / LAST).touch()
            except OSError:  # a full disk: the evaluator would wait for this mark for ever
                self.close()
            ended = False
            while not ended:
                ended = self._evaluator.poll() is not None  # asked before reading: no row can come later
                for row in self.rows.read():
                    show(row)
                time.sleep(0 if ended else 0.05)
        measure_waiting(self.folder, self.task, show)

    # checkpoints -----------------------------------------------------------------------------------------------

    def _checkpoint(self, center: CenterView, now: float) -> None:
        """Open a draft when one is due; when all living workers have saved their parts, add the center's."""
        if self._draft is None:
            if now >= self._next_checkpoint and center.joined():
                self._number = self.checkpoints.next_number()
                self._draft = self.checkpoints.draft(self._number)
                with contextlib.suppress(OSError):
                    self._draft.mkdir(parents=True)
                self._deadline = now + self._patience(self._barrier)
            return
        parts = {path.name for path in self._draft.glob(f"*{SUFFIX}")}
        here = all(f"worker-{rank}{SUFFIX}" in parts for rank in center.joined())
        slots = center.snapshot() if here and parts else None
        if slots is not None:
            self._complete(self._number, {"slots": slots, "version": center.version, "clocks": center.clocks})
            self._draft, self._next_checkpoint = None, now + self.config.checkpoint_every
            self._barrier = BARRIER_SECONDS
        elif now > self._deadline:
            missing = [r for r in center.joined() if f"worker-{r}{SUFFIX}" not in parts]
            self.view.note(f"no checkpoint now: workers {missing} did not save their state in time; trying again later")
            shutil.rmtree(self._draft, ignore_errors=True)
            # Early in a run on a busy machine the mean step counts the start, and five times that would be minutes.
            pause = max(min(5 * self._patience(BARRIER_SECONDS), LONGEST_BARRIER), self.config.checkpoint_every)
            self._draft, self._next_checkpoint = None, now + pause
            self._barrier = min(2 * self._barrier, LONGEST_BARRIER)

    def _patience(self, barrier: float) -> float:
        step = self.monitor.time * len(self.monitor.workers) / max(1, self.monitor.steps)
        return barrier + 4 * step

    def _complete(self, number: int, center: dict[str, Any]) -> None:
        self._read()  # the workers wait: all records so far belong to this checkpoint
        progress = {"time": self.monitor.time, "monitor": self.monitor.state_dict()}
        self.checkpoints.complete(number, {"center": center, "progress": progress})


def start_evaluator(folder: RunFolder) -> subprocess.Popen[bytes]:
    """Start the process that measures snapshots while training goes on; it ends with this one."""
    command = [sys.executable, "-m", "easgd.training.evaluator", str(folder.path)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)


def forget_after(path: Path, moment: float) -> None:
    """Remove the lines of a file of JSON lines that have a later time."""
    if path.exists():
        kept = [line for line in read_json_lines(path) if float(line.get("time", 0.0)) <= moment]
        with atomic(path) as scratch:
            scratch.write_text("".join(json.dumps(line) + "\n" for line in kept))
