"""A training run on the virtual clock.

Bit for bit the same for the same settings: records, evaluations and the final center. A checkpoint holds the whole
simulation and how long the files of lines were; resuming cuts them back and goes on with the same bits.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from collections.abc import Callable

from torch import Tensor

from easgd.center.history import SUFFIX, History
from easgd.engines.simulate import CostModel, Simulation
from easgd.flat import pack
from easgd.records import Record
from easgd.training.checkpoints import Checkpoints, LineFile
from easgd.training.config import Config
from easgd.training.evaluation_grid import Grid
from easgd.training.folder import RunFolder
from easgd.training.gradient import TaskGradient
from easgd.training.monitor import Monitor
from easgd.training.task import Task
from easgd.training.view import View
from easgd.worker.context import DEFAULT_CENTER


class SimulationRunner:
    """One run of the engine "simulate"."""

    def __init__(self, config: Config, folder: RunFolder, view: View) -> None:
        self.config, self.folder, self.view = config, folder, view
        self.task = Task(config)
        self.gradient = TaskGradient(self.task)
        self.monitor = Monitor()
        # The cluster is the preset's, the messages are this network's.
        cost = dataclasses.replace(CostModel.preset(config.cost), message_bytes=None)
        self.sim = Simulation(
            self.gradient, self.gradient.x0, config.make_method(), lr=config.lr or 0.0, workers=config.workers or 1,
            schedule=config.schedule, seed=config.seed, cost=cost,  # type: ignore[arg-type]
            optimizer=self.task.optimizer, scheduler=None if config.has_constant_rate else self.task.scheduler,
            parallel=config.parallel, on_record=self._record, faults=folder.faults(),
            compression=None if config.compression == "none" else config.compression, guard=config.guard,
            history=new_history(folder) if config.history else None, starts=self._starts(),
        )  # fmt: skip
        self.template = self.task.model()
        self.vector, _ = pack(self.template)
        self.records = LineFile(folder.path / "records-simulate.jsonl")
        self.evaluations = LineFile(folder.evaluations_path)
        self.grid = Grid.of(config, self.task.most_steps)
        self.point, self.last_measured, self.last_error = -1, -1, 1.0
        self.seconds = self._saved = 0.0
        self.stop_requested = False
        self.ended: tuple[str, str] | None = None
        """how the run ended (a state) and why"""

    def _starts(self) -> Callable[[int], Tensor] | None:
        return None if self.config.start == "center" else lambda worker: pack(self.task.model(worker))[0]

    def _record(self, record: Record) -> None:
        self.records.write(json.dumps(record.as_dict()))
        self.monitor.take(record)

    # running ---------------------------------------------------------------------------------------------------

    def run(self) -> tuple[str, str]:
        """Train until the budget is used up or a stop is requested; return state and reason."""
        while self.ended is None:
            self.advance()
            if self.seconds - self._saved >= self.config.checkpoint_every:
                self.save()
        return self.ended

    def advance(self) -> None:
        """Simulate one tick, or set `ended`."""
        began = time.monotonic() - self.seconds
        if self.point < 0:
            self._measure()
        if (reason := self.over()) is not None:
            if self.last_measured != self.sim.ticks:
                self._measure()
            self.ended = "finished", reason
        elif self.stop_requested:
            self.ended = "interrupted", "stopped on request"
        elif not self.sim.run(1):
            self.ended = "failed", "no worker is left"
        elif self.grid.point(self.sim.time, self.monitor.steps) > self.point:
            self._measure()
        self.seconds = time.monotonic() - began
        if self.ended is None:
            self.view.progress(self.progress(), self.monitor, self.seconds)
        else:
            self.sim.end_record()
            if self.ended[0] != "failed":
                self.save()

    def over(self) -> str | None:
        """Return why the run is over, if it is."""
        config = self.config
        if config.target is not None and self.last_error <= config.target:
            return f"test error {self.last_error:.4f} reached {config.target}"
        if config.seconds is not None and self.sim.time >= config.seconds:
            return f"{config.seconds:g} virtual seconds are over"
        if self.monitor.steps >= self.task.most_steps:
            return f"{self.monitor.steps} steps are done"
        return None

    def progress(self) -> float:
        """Return how much of the budget is used."""
        by_time = self.sim.time / self.config.seconds if self.config.seconds else 0.0
        return min(1.0, max(by_time, self.monitor.steps / self.task.most_steps))

    # measuring -------------------------------------------------------------------------------------------------

    def _measure(self) -> None:
        row = {
            "time": self.sim.time, "steps": self.monitor.steps, "version": self.sim.center.version,
            "bytes": self.monitor.bytes, **self.task.measure(self.center()),
        }  # fmt: skip
        self.last_error, self.last_measured = row["test_error"], self.sim.ticks
        self.point = self.grid.point(self.sim.time, self.monitor.steps)
        self.evaluations.write(json.dumps(row))
        self.evaluations.flush()
        self.records.flush()
        self.view.evaluated(row, self.progress())

    def center(self) -> dict[str, Tensor]:
        """Return what is measured, x̃ or z, as a state dict of the network."""
        self.vector.copy_(self.sim.center.measured)
        return {name: value.clone() for name, value in self.template.state_dict().items()}

    # saving ----------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Write a checkpoint: the simulation, the sums of the monitor, and how long the files are."""
        progress = {
            "seconds": self.seconds,
            "point": self.point,
            "last_measured": self.last_measured,
            "last_error": self.last_error,
            "monitor": self.monitor.state_dict(),
            "files": {"records": self.records.position(), "evaluations": self.evaluations.position()},
        }
        Checkpoints(self.folder.checkpoints).save({"simulation": self.sim.state_dict(), "progress": progress})
        self._saved = self.seconds

    def load(self) -> bool:
        """Go on from the newest checkpoint; False if there is none, and the run starts from the beginning."""
        parts = Checkpoints(self.folder.checkpoints).load()
        files = {"records": 0, "evaluations": 0} if parts is None else parts["progress"]["files"]
        self.records.cut(files["records"])
        self.evaluations.cut(files["evaluations"])
        if parts is None:
            return False
        progress = parts["progress"]
        self.sim.load_state_dict(parts["simulation"])
        self.monitor.load_state_dict(progress["monitor"])
        self.seconds, self.point = progress["seconds"], progress["point"]
        self._saved = self.seconds
        self.last_measured, self.last_error = progress["last_measured"], progress["last_error"]
        return True

    def close(self) -> None:
        self.records.close()
        self.evaluations.close()


def new_history(folder: RunFolder) -> History:
    """Open the history of one session of a run: a resumed one has several, each with its own start value."""
    sessions = folder.path / "history"
    session = next(path for k in itertools.count() if not (path := sessions / f"session-{k}").exists())
    (session / DEFAULT_CENTER).mkdir(parents=True)
    return History(session / DEFAULT_CENTER / f"simulate{SUFFIX}")
