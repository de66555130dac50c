"""Many runs, some at once: what is finished is kept, what was interrupted goes on, what fails stops nothing else."""

from __future__ import annotations

import os
import queue
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

from easgd.errors import SettingError, refuse
from easgd.files import write_json
from easgd.launch.process import Lifeline
from easgd.machine import usable_cores
from easgd.signals import handle_signals
from easgd.training.compare_view import CompareView
from easgd.training.config import Config
from easgd.training.folder import RunFolder, alone, check_free
from easgd.training.jobs import Job, Lines, Process
from easgd.training.run import Run
from easgd.training.sweep import Sweep, check_jobs, load_sweep, make_sweep

IRRELEVANT = ("parallel", "checkpoint_every")
"""Settings that change no number of a run."""


def compare(
    grid: Sweep | Mapping[str, Any] | str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    jobs: int | None = None,
    view: CompareView | None = None,
) -> list[Run]:
    """Carry out every run of a grid; return the runs that finished.

    Args:
        grid: a TOML file, or its content as a dict: settings of which any may be a list, and groups under "runs".
        out: the folder of the comparison; runs that are finished in it are not repeated, others go on.
        jobs: how many run at once; by default the machine's cores for the engine simulate, 1 for the others.
        view: where progress is shown; nowhere if None.

    Example:
        >>> import easgd
        >>> grid = {"engine": "simulate", "network": "digits-mlp", "method": ["sgd", "easgd"], "steps": 20}
        >>> [run.label for run in easgd.compare(grid, "runs/two")]
        ['SGD', 'EASGD p=4 τ=10']
    """
    made = grid if isinstance(grid, Sweep) else make_sweep(grid) if isinstance(grid, Mapping) else load_sweep(grid)
    planned = carry_out(made, Path(out), jobs=jobs, view=view)
    return [Run(job.path) for job in planned if job.state in ("finished", "kept")]


def carry_out(grid: Sweep, out: Path, *, jobs: int | None = None, view: CompareView | None = None) -> list[Job]:
    """Carry out a grid; return every job as it ended."""
    if not grid.configs:
        raise refuse("runs", "none", "a comparison needs at least one", "add a [[runs]] table")
    planned = plan(grid, out)
    at_once = check_jobs(jobs) or grid.jobs or default_jobs(grid.configs)
    names = [job.name for job in planned]
    shown: dict[str, Any] = {"runs": names, "levels": grid.levels, "baseline": grid.baseline, "grid": grid.source}
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "compare.json", shown)
    except OSError as error:
        why = (error.strerror or str(error)).lower()
        raise refuse("out", out, why, "choose a folder that can be written") from error
    with alone(out):
        Comparison(planned, out, at_once, view or CompareView()).run()
    return planned


def default_jobs(configs: Sequence[Config]) -> int:
    """As many as there are cores on the virtual clock, one where the workers have real ones."""
    if any(config.engine != "simulate" for config in configs):
        return 1
    return max(1, min(usable_cores() // max(config.parallel for config in configs), len(configs)))


def plan(grid: Sweep, out: Path) -> list[Job]:
    """Give every run its folder: the one that has its settings already, or a new name."""
    check_free(out)
    existing = {}
    for file in sorted(out.glob("*/config.json")):
        try:
            existing[Config.load(file).key(IRRELEVANT)] = file.parent
        except SettingError:
            continue  # not ours to judge; its name is taken, that is all
    used = {path.name for path in out.iterdir()} if out.is_dir() else set()
    planned = []
    for config in grid.configs:
        path = existing.get(config.key(IRRELEVANT))
        if path is None:
            path = out / _free_name(config, used)
            used.add(path.name)
        done = RunFolder(path).status.get("state") == "finished" and (path / "config.json").exists()
        planned.append(Job(config, path, "kept" if done else "waiting", progress=1.0 if done else 0.0))
    return planned


def _free_name(config: Config, used: set[str]) -> str:
    """Return a readable name: method, p, τ, η, seed."""
    name = f"{config.method_class.key}-p{config.workers}-t{config.period}-lr{config.lr:g}-s{config.seed}"
    number = 1
    while (found := name if number == 1 else f"{name}-{number}") in used:
        number += 1
    return found


def path_of(config: Config) -> Hashable:
    """What two runs must have in common to be computed together; None for a run that goes alone."""
    if config.engine != "simulate" or config.target is not None:  # at a target, each would end on its own
        return None
    return config.method_class.shares_path_with or config.method, config.key(("method", "rate", *IRRELEVANT))


def families(configs: Sequence[Config]) -> list[list[Config]]:
    """Put together the runs that go the same way (`training.shared_gradients`), in the order of the first of each."""
    found: dict[Hashable, list[Config]] = {}
    for config in configs:
        path = path_of(config)
        found.setdefault(config if path is None else path, []).append(config)
    return list(found.values())


class Comparison:
    """The jobs of a comparison, some of them running."""

    def __init__(self, planned: Sequence[Job], out: Path, at_once: int, view: CompareView) -> None:
        self.jobs, self.at_once, self.view = planned, at_once, view
        self.logs = out / "logs"
        waiting = {job.config: job for job in planned if job.state == "waiting"}
        self.waiting = [[waiting[config] for config in family] for family in families(list(waiting))]
        self.running: dict[Job, Process] = {}
        self.stopped = 0
        self._lines: Lines = queue.Queue()

    def run(self) -> None:
        """Stay until every job has ended, or until asked to stop."""
        lifeline = Lifeline()
        try:
            self.view.begin(self.jobs, self.at_once)
            with handle_signals(self._ask):
                while self.running or (self.waiting and not self.stopped):
                    while self.waiting and not self.stopped and len(self.processes) < self.at_once:
                        self._start(self.waiting.pop(0), lifeline)
                    self._listen()
                    self.view.remaining(self.remaining())
        finally:
            for process in self.processes:
                process.kill()
            lifeline.close()
            self.view.end(self.jobs)

    @property
    def processes(self) -> list[Process]:
        """The processes at work, each once."""
        return list(dict.fromkeys(self.running.values()))

    def _start(self, jobs: list[Job], lifeline: Lifeline) -> None:
        process = Process(jobs, self.logs, lifeline, self._lines)
        for job in jobs:
            self.running[job] = process
            self.view.started(job)

    def _listen(self) -> None:
        """Take what the runs have said since the last look."""
        try:
            job, event = self._lines.get(timeout=0.2)
        except queue.Empty:
            return
        if event is None:
            self.running.pop(job).conclude(job, bool(self.stopped))
            self.view.ended(job)
        elif event["event"] == "evaluation":
            share = float(event.get("progress", job.progress))
            # The first word of a resumed run says where it goes on from.
            job.first = share if job.error is None and share < 1 else job.first
            job.progress, job.error = share, event.get("test_error")
            self.view.progressed(job)

    def remaining(self) -> float | None:
        """Seconds until the end; None while no run has come far enough to judge by."""
        expected = [known for job in self.jobs if (known := job.expected()) is not None]
        if not expected:
            return None
        usual = sum(expected) / len(expected)
        now = [max((job.expected() or usual) * (1 - job.progress) for job in each.jobs) for each in self.processes]
        return max([*now, (sum(now) + usual * len(self.waiting)) / self.at_once], default=0.0)

    def _ask(self, number: int, frame: Any) -> None:
        """The first Ctrl-C or SIGTERM lets every run save itself; the second ends them at once."""
        self.stopped += 1
        for process in self.processes:
            process.interrupt() if self.stopped == 1 else process.kill()
        if self.stopped == 1:
            self.view.note("stopping: the runs save themselves; Ctrl-C again ends them at once")
