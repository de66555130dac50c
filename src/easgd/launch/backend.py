"""What the launcher needs of an engine: workers that it can start, poll, interrupt and kill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from easgd.launch.event_log import EventLog
    from easgd.launch.observer import CenterView


@dataclass(frozen=True)
class RunRequest:
    """What to run, and where to keep what it leaves.

    Attributes:
        target: ["script", path, arguments…], ["module", name, arguments…] or ["function", fn, its arguments].
        workers: how many to start.
        id: the run's name on this machine; see `run_directory.new_id`.
        out: folder for logs and records; None keeps them in the run directory, which is removed at the end.
        command: what `easgd launch --list` shows.
        schedule: "async", "sync", "round-robin", or None for what the method says.
        elapsed: seconds of training that a resumed run has behind it; None for a new run.
        options: of the engine, by name.
        history: whether exchanges are written down, in `out`.
        nproc: ranks of each worker; with several, each worker is a group that finds torchrun's variables.
    """

    target: Sequence[Any]
    workers: int
    id: str
    out: Path | None = None
    command: str = ""
    schedule: str | None = None
    elapsed: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    nproc: int = 1
    history: bool = False


class Ended(NamedTuple):
    """A worker that this launcher started has ended. `code` is negative for a signal."""

    rank: int
    incarnation: int
    code: int
    how: str


class Change(NamedTuple):
    """Something happened to a worker: `event` is "join" or "death" of another launcher's, "paused" or "resumed"."""

    event: str
    rank: int
    incarnation: int
    detail: str


class Backend(Protocol):
    """The workers of one run, as one launcher starts them.

    An engine's module has two context managers that yield one: `start_run(request)` for a run of its own and
    `join_run(reference, request)` for a run of another launcher.
    """

    run_id: str
    out: Path
    joined: bool
    where: str
    """Where the workers run, for a message; empty for this machine."""
    event_log: EventLog | None
    """Where this launcher records events; None if the run's owner records them."""

    def open(self) -> None:
        """Set up what workers need before they start."""

    def start(self, rank: int | None) -> tuple[int, int]:
        """Start a worker on `rank`, the lowest free one if None; return its rank and incarnation."""

    def poll(self, seconds: float) -> list[Ended]:
        """Relay output for at most `seconds`, or until a worker ends; return those that have ended."""

    def mark_dead(self, rank: int, incarnation: int, *, keep_rank: bool) -> None:
        """Tell the center that a worker has ended; free its rank unless it is about to start again."""

    def changes(self) -> list[Change]:
        """Return what happened to other launchers' workers since the last call. Only the run's owner asks."""

    def alive(self) -> bool:
        """Whether the run goes on. Only a launcher that has joined asks."""

    def began(self) -> float | None:
        """When training began, on this machine's monotonic clock; None before."""

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a worker that this launcher started, for a plan of faults (`faults_it_can_do`)."""

    def interrupt_all(self) -> None:
        """Ask the workers to stop, as Ctrl-C does."""

    def kill_all(self) -> None:
        """Kill the workers that this launcher started. Signal handlers call it."""

    def reader(self) -> CenterView:
        """Return the center as an observer sees it."""

    def final_centers(self) -> dict[str, dict[str, Tensor]]:
        """Return the centers by name when all workers have ended: one for each model that the script attached."""

    def close(self) -> None:
        """Undo `open`; the workers have ended."""
