"""The run's records on disk: the launcher writes its own events, and reads everybody's when the run is over.

<out>/records-launcher.jsonl              deaths, restarts, joins, as the launchers saw them
<out>/records-<rank>-<incarnation>.jsonl  a worker's steps and events
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

from easgd.errors import SettingError
from easgd.launch.output import say
from easgd.records import Breakdown, Event, Record, Step, breakdown, read_records


class EventLog:
    """Where a launcher writes down what happened to its workers."""

    def __init__(self, out: Path, zero: Callable[[], float]) -> None:
        self.path, self.zero = out / "records-launcher.jsonl", zero
        self._warned = False

    def write(self, event: str, worker: int | None, detail: str = "") -> None:
        """Append one event. Two launchers may write: a short line appended in one call stays whole."""
        # All records count from the moment at which training began.
        record = Event(event, round(time.monotonic() - self.zero(), 6), worker, detail)
        try:
            with open(self.path, "ab", buffering=0) as file:
                file.write(json.dumps(record.as_dict()).encode() + b"\n")
        except OSError as error:
            if not self._warned:
                say(f"warning: events are not recorded in {self.path}: {error.strerror}")
            self._warned = True


def prepare(out: Path, *, resumed: bool = False) -> None:
    """Make the folder; move what an earlier run left in it aside, so that records of two runs never mix."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        old = [] if resumed else [*out.glob("records-*.jsonl"), *out.glob("logs")]
        if old:
            aside = next(path for k in count(1) if not (path := out / f"earlier-{k}").exists())
            aside.mkdir()
            for path in old:
                path.rename(aside / path.name)
    except OSError as error:
        raise SettingError(f"out = {out}: cannot be written ({error.strerror}); choose another folder") from error


def time_split(out: Path) -> list[tuple[int, Breakdown]]:
    """Return where each worker's time went."""
    steps: dict[int, list[Record]] = {}
    for record in read_records(out):
        if isinstance(record, Step):
            steps.setdefault(record.worker, []).append(record)
    return [(worker, breakdown(steps[worker])) for worker in sorted(steps)]
