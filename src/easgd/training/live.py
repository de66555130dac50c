"""The live view of a run in a terminal."""

from __future__ import annotations

import time

from rich.console import Group
from rich.live import Live as RichLive
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from easgd.training.config import Config
from easgd.training.monitor import Monitor, WorkerStatus
from easgd.training.view import Row, Silent, counted, measures

REDRAW = 0.2
MOST_ROWS = 16


class Live(Silent):
    """A progress bar, the center's last measures, and a row per worker."""

    def __init__(self) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn(),
            TimeRemainingColumn(), TextColumn("{task.fields[rate]}"),
        )  # fmt: skip
        # Its clock starts with the first step: starting the workers is no training.
        self._task = self._bar.add_task("", total=1.0, rate="starting", start=False)
        self._center = Text("the center has not been measured yet")
        self._live = RichLive(self._bar, refresh_per_second=5, transient=False)
        self._drawn, self._monitor = 0.0, Monitor()

    def begin(self, config: Config, folder: str) -> None:
        method = config.make_method().describe(config.workers, config.lr)
        self._bar.update(self._task, description=config.label)
        self._live.start()
        self._live.console.print(f"{method}; {config.shown_rate} on {config.data}, {config.engine} → {folder}")

    def progress(self, share: float, monitor: Monitor, seconds: float) -> None:
        if time.monotonic() - self._drawn < REDRAW:
            return
        self._drawn = time.monotonic()
        if not monitor.steps:
            return
        self._bar.start_task(self._task)
        loss = "" if monitor.loss is None else f"   online loss {monitor.loss:.4f}"
        rate = f"{monitor.steps / seconds:.0f} steps/s{loss}" if seconds else ""
        self._bar.update(self._task, completed=share, rate=rate)
        self._monitor = monitor
        self._draw()

    def _draw(self) -> None:
        table, events = workers_table(self._monitor), map(Text, self._monitor.events)
        self._live.update(Group(self._bar, self._center, table, *events))

    def evaluated(self, row: Row, share: float, rest: tuple[int, int] | None = None) -> None:
        self._center = Text(f"center: {measures(row).strip()}")
        self._bar.update(self._task, completed=share)
        if rest is not None:
            self._bar.update(self._task, rate=counted(rest))
            self._draw()

    def note(self, text: str) -> None:
        self._live.console.print(text)

    def end(self, state: str, reason: str) -> None:
        if state == "finished":
            self._bar.update(self._task, completed=1.0)
        self._live.stop()
        self._live.console.print(f"{state}: {reason}")


def workers_table(monitor: Monitor) -> Table:
    """Return a row per worker: clock, distance to the center, staleness and time split."""
    table = Table(box=None, header_style="dim", padding=(0, 2))
    for name in ("worker", "clock", "‖x − x̃‖", "staleness", "compute/data/communication", ""):
        table.add_column(name, justify="right")
    for rank in sorted(monitor.workers)[:MOST_ROWS]:
        table.add_row(str(rank), *_cells(monitor.workers[rank]))
    hidden = len(monitor.workers) - MOST_ROWS
    if hidden > 0:
        table.add_row("…", f"{hidden} more", "", "", "", "")
    return table


def _cells(seen: WorkerStatus) -> tuple[str, ...]:
    total = seen.compute + seen.data + seen.communication + seen.waiting or 1.0
    split = "/".join(f"{part / total:.0%}" for part in (seen.compute, seen.data, seen.communication + seen.waiting))
    distance = "–" if seen.distance is None else f"{seen.distance:.4g}"
    staleness = "–" if seen.staleness is None else str(seen.staleness)
    return str(seen.clock), distance, staleness, split, "" if seen.state == "join" else seen.state
