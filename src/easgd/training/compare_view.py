"""What a user sees of a comparison: bars in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from easgd.training.jobs import Job

if TYPE_CHECKING:
    from rich.progress import TaskID

ENDED = ("kept", "finished", "failed", "interrupted")


class CompareView:
    """Where a comparison shows its progress; this one shows nothing."""

    def begin(self, jobs: Sequence[Job], at_once: int) -> None:
        """The comparison begins or is resumed."""

    def started(self, job: Job) -> None:
        """A run begins or is resumed."""

    def progressed(self, job: Job) -> None:
        """A run has measured its center."""

    def ended(self, job: Job) -> None:
        """A run has ended, well or not."""

    def remaining(self, seconds: float | None) -> None:
        """Called often, with the estimated seconds to the end."""

    def note(self, text: str) -> None:
        """Show one line."""

    def end(self, jobs: Sequence[Job]) -> None:
        """The comparison has ended."""


class PlainCompareView(CompareView):
    """A line when a run begins and ends, with the time that is left."""

    def __init__(self) -> None:
        self._jobs: Sequence[Job] = ()
        self._left: float | None = None

    def begin(self, jobs: Sequence[Job], at_once: int) -> None:
        self._jobs = jobs
        self.note(summary(jobs, at_once))

    def started(self, job: Job) -> None:
        self.note(f"start     {job.name}")

    def ended(self, job: Job) -> None:
        done = sum(other.state in ENDED for other in self._jobs)
        left = "" if self._left is None or done == len(self._jobs) else f", {clock(self._left)} left"
        self.note(f"{job.state:<9} {result(job)}  ({done} of {len(self._jobs)}{left})")

    def remaining(self, seconds: float | None) -> None:
        self._left = seconds

    def note(self, text: str) -> None:
        print(text, flush=True)


class LiveCompareView(CompareView):
    """One bar per running job under one for the whole."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

        self._bars = Progress(
            TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[words]}")
        )
        self._all: TaskID | None = None
        self._tasks: dict[Job, TaskID] = {}
        self._jobs: Sequence[Job] = ()
        self._left: tuple[float, float] | None = None

    def begin(self, jobs: Sequence[Job], at_once: int) -> None:
        self._jobs = jobs
        self._bars.start()
        self.note(summary(jobs, at_once))
        self._all = self._bars.add_task("all runs", total=len(jobs), words="")
        self._redraw()

    def started(self, job: Job) -> None:
        self._tasks[job] = self._bars.add_task(f"  {job.name}", total=1.0, words="starts")

    def progressed(self, job: Job) -> None:
        words = "" if job.error is None else f"test error {job.error:.2%}"
        self._bars.update(self._tasks[job], completed=job.progress, words=words)
        self._redraw()

    def ended(self, job: Job) -> None:
        self._bars.remove_task(self._tasks.pop(job))
        self.note(f"{job.state:<9} {result(job)}")
        self._redraw()

    def remaining(self, seconds: float | None) -> None:
        now = time.monotonic()
        if seconds is not None and (self._left is None or now - self._left[0] > 1):
            self._left = (now, seconds)
            self._redraw()

    def _redraw(self) -> None:
        if self._all is None:
            return
        done = sum(job.state in ENDED for job in self._jobs)
        left = f", {clock(self._left[1])} left" if self._left is not None and done < len(self._jobs) else ""
        share = sum(1.0 if job.state in ENDED else job.progress for job in self._jobs)
        self._bars.update(self._all, completed=share, words=f"{done} of {len(self._jobs)}{left}")

    def note(self, text: str) -> None:
        self._bars.console.print(text, markup=False, highlight=False)

    def end(self, jobs: Sequence[Job]) -> None:
        self._bars.stop()


def choose(plain: bool = False) -> CompareView:
    """Return the view that fits: bars in a terminal, else lines."""
    return PlainCompareView() if plain or not sys.stdout.isatty() else LiveCompareView()


def summary(jobs: Sequence[Job], at_once: int) -> str:
    """How much there is to do."""
    kept = sum(job.state == "kept" for job in jobs)
    resumed = sum(job.state == "waiting" and (job.path / "config.json").exists() for job in jobs)
    parts = [f"{len(jobs)} runs", *([f"{kept} finished earlier"] if kept else [])]
    return ", ".join([*parts, *([f"{resumed} to go on with"] if resumed else []), f"{at_once} at once"])


def result(job: Job) -> str:
    """Return name and outcome of a job that has ended."""
    if job.state == "failed":
        return f"{job.name}: {job.reason}"
    error = "" if job.error is None else f": last test error {job.error:.2%}"
    return f"{job.name}{error} in {clock(job.seconds)}"


def clock(seconds: float) -> str:
    """Format a duration: "9 s", "2 min 05 s", "3 h 07 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return (
        f"{whole // 60} min {whole % 60:02d} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    )
