"""The launcher's own records, and a summary of all records when the run is over.

<out>/records-launcher.jsonl              deaths, restarts, joins, as the launchers saw them
<out>/records-<rank>-<incarnation>.jsonl  a worker's steps and events
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from itertools import count
from pathlib import Path

from easgd.errors import SettingError
from easgd.files import reason
from easgd.launch.output import say
from easgd.records import LAST_LOSSES, Breakdown, Event, Record, Step, breakdown, last_losses, logged, read_records
from easgd.runtime import time

STRAGGLER = 1.5
"""A worker whose step takes this many times the usual one is named in the summary."""


class EventLog:
    """Appends what happened to workers to a file of JSON lines; `zero` gives the moment that times count from."""

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
                say(f"warning: events are not recorded in {self.path}: {reason(error)}")
            self._warned = True


def prepare(out: Path, *, resumed: bool = False) -> None:
    """Make the folder; move what an earlier run left in it aside, so that records of two runs never mix."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        old = [] if resumed else [*out.glob("records-*.jsonl"), *out.glob("logs"), *out.glob("history")]
        if old:
            aside = next(path for k in count(1) if not (path := out / f"earlier-{k}").exists())
            aside.mkdir()
            for path in old:
                path.rename(aside / path.name)
            say(f"{out} held a run already: its records are in {aside}")
    except OSError as error:
        raise SettingError(f"out = {out}: cannot be written ({reason(error)}); choose another folder") from error


def time_split(out: Path) -> list[tuple[int, Breakdown]]:
    """Return where each worker's time went."""
    steps: dict[int, list[Record]] = {}
    for record in read_records(out):
        if isinstance(record, Step):
            steps.setdefault(record.worker, []).append(record)
    return [(worker, breakdown(steps[worker])) for worker in sorted(steps)]


def loss_summary(out: Path) -> list[str]:
    """Say what the workers' losses were in the end, and what the center gained over them, where they were logged."""
    online = last_losses(read_records(out))
    compared: dict[int, tuple[float, float]] = {}
    for record in read_records(out):
        scalars = logged(record)
        if record.worker is not None and {"own", "center"} <= scalars.keys():
            compared[record.worker] = scalars["own"], scalars["center"]
    lines = []
    if online:
        last = ", ".join(f"{found:.4f}" for found in online.values())
        lines.append(f"loss of the workers, mean of their last {LAST_LOSSES} steps: {last}")
    if compared:
        own, center = (statistics.fmean(values) for values in zip(*compared.values(), strict=True))
        gain = f"the center gains {own - center:.4f}" if center < own else "the center gains nothing"
        lines.append(f"last comparison: own weights {own:.4f} (mean of {len(compared)}), center {center:.4f}: {gain}")
    return lines


def network_summary(out: Path) -> list[str]:
    """Say which workers were slow, on which machine, and how many bytes moved; nothing for a run of one machine."""
    steps: dict[int, list[Step]] = {}
    nodes: dict[int, str] = {}
    for record in read_records(out):
        if isinstance(record, Step):
            steps.setdefault(record.worker, []).append(record)
        elif isinstance(record, Event) and record.worker is not None and record.node:
            nodes[record.worker] = record.node
    if not steps or not nodes:
        return []
    pace = {worker: statistics.median(s.compute + s.data for s in rows) for worker, rows in steps.items()}
    usual = statistics.median(pace.values())
    lines = [
        f"straggler: worker {worker} on {nodes.get(worker, '?')} takes {seconds / usual:.1f} times the usual step"
        for worker, seconds in sorted(pace.items())
        if seconds > STRAGGLER * usual
    ]
    moved = sum(s.bytes for rows in steps.values() for s in rows)
    taken = sum(len(rows) for rows in steps.values())
    per_node = {node: sum(n == node for n in nodes.values()) for node in sorted(set(nodes.values()))}
    lines.append(f"moved {moved / 1e6:.4g} MB over the network, {moved / taken / 1e3:.4g} KB a step")
    lines.append("workers by node: " + ", ".join(f"{node}: {count}" for node, count in per_node.items()))
    return lines
