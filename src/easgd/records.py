"""What every engine writes down: one record per local step, one per remarkable event.

The simulator fills the times from its virtual clock, the other engines from real ones; the fields mean the same, so
that one report reads all of them.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from easgd.errors import SettingError


@dataclass(slots=True)
class Step:
    """One local step of one worker.

    Times are seconds of this step alone. `communication` is the part of the exchange that the worker could not hide
    behind its gradient; `waiting` is time lost to others: the center's queue, a barrier, a turn, a pause.
    `staleness` (updates of the center, or of the fragment, since this worker's last exchange of it), `distance`
    (‖xⁱ − x̃‖ when the center answered) and `bytes` are those of the exchange whose answer the step has used; None and 0
    in the other steps. `loss` is the online training loss: that of the
    step's own batch, before the update.
    """

    worker: int
    clock: int
    time: float
    compute: float
    data: float
    communication: float
    waiting: float
    staleness: int | None = None
    distance: float | None = None
    bytes: int = 0
    loss: float | None = None
    scalars: dict[str, float] | None = None
    """The user's own numbers (`Worker.log`); left out of the line where there are none."""

    def as_dict(self) -> dict[str, object]:
        """Return the record as one line of records.jsonl holds it."""
        record = {"event": "step", **asdict(self)}
        if self.scalars is None:
            del record["scalars"]
        return record


@dataclass(slots=True)
class Attached:
    """What a worker was attached with: all that a report knows of the settings of a launched script."""

    method: str
    workers: int
    period: int | str
    lr: float
    engine: str

    @property
    def label(self) -> str:
        """A short name for tables and figures."""
        return f"{self.method} p={self.workers} τ={self.period}"


@dataclass(slots=True)
class Event:
    """Something that is not a step: a death, a join, a refused exchange, a changed moving rate."""

    event: str
    time: float
    worker: int | None
    detail: str = ""
    node: str = ""
    """The machine, where a run has several."""
    attached: Attached | None = None
    """Of a worker that has joined."""

    def as_dict(self) -> dict[str, object]:
        """Return the record as one line of records.jsonl holds it."""
        record = asdict(self)
        if not self.node:
            del record["node"]
        if self.attached is None:
            del record["attached"]
        return record


Record = Step | Event


def parse(line: bytes | str) -> Record | None:
    """Return one record; None for what is none, as the torn last line of a worker that was killed while it wrote."""
    try:
        data = json.loads(line)
        return msgspec.convert(data, Step) if data["event"] == "step" else msgspec.convert(data, Event)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, msgspec.MsgspecError):
        return None


def read_records(out: Path) -> Iterator[Record]:
    """Yield the records of a run, file by file: `records-*.jsonl` in its folder, packed where the run was archived."""
    for path in sorted([*out.glob("records-*.jsonl"), *out.glob("records-*.jsonl.gz")]):
        yield from filter(None, map(parse, _packed(path) if path.suffix == ".gz" else _plain(path)))


def _plain(path: Path) -> Iterator[bytes]:
    with open(path, "rb") as file:
        yield from file


def _packed(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path) as file:
            yield from file
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise SettingError(f"{path}: the packed records are damaged ({error}); copy the file again") from error


@dataclass(frozen=True)
class Breakdown:
    """Where a worker's time went, in the form of the paper's table: compute / data / communication.

    The paper counts the queue at the parameter server as communication; `communication` here includes `waiting`.
    """

    steps: int
    compute: float
    data: float
    communication: float
    waiting: float

    def __str__(self) -> str:
        return f"{self.compute:.4g}/{self.data:.4g}/{self.communication:.4g}"


class Totals:
    """Running sums over steps, so that records of any length are added up without being held."""

    def __init__(self) -> None:
        self.workers: set[int] = set()
        self.steps = 0
        self.compute = self.data = self.communication = self.waiting = 0.0

    def add(self, step: Step) -> None:
        self.workers.add(step.worker)
        self.steps += 1
        self.compute += step.compute
        self.data += step.data
        self.communication += step.communication
        self.waiting += step.waiting

    def breakdown(self) -> Breakdown:
        """Return the mean over the workers that were seen."""
        workers = len(self.workers) or 1
        return Breakdown(
            steps=self.steps // workers,
            compute=self.compute / workers,
            data=self.data / workers,
            communication=(self.communication + self.waiting) / workers,
            waiting=self.waiting / workers,
        )


def breakdown(records: Iterable[Record], worker: int | None = None) -> Breakdown:
    """Sum the time of one worker, or the mean over workers, as in the paper's table of the wallclock time."""
    totals = Totals()
    for record in records:
        if isinstance(record, Step) and (worker is None or record.worker == worker):
            totals.add(record)
    return totals.breakdown()


def logged(record: Record) -> dict[str, float]:
    """Return the numbers that a worker logged with a step, or after its last one."""
    if isinstance(record, Step):
        return record.scalars or {}
    if isinstance(record, Event) and record.event == "log":
        try:
            return {name: float(value) for name, value in json.loads(record.detail).items()}
        except (ValueError, TypeError, AttributeError):  # not ours
            return {}
    return {}


LAST_LOSSES = 100


def last_losses(records: Iterable[Record]) -> dict[int, float]:
    """Return the mean of each worker's last online losses, of those workers that recorded any."""
    last: dict[int, deque[float]] = {}
    for record in records:
        if isinstance(record, Step) and record.loss is not None:
            last.setdefault(record.worker, deque(maxlen=LAST_LOSSES)).append(record.loss)
    return {worker: sum(found) / len(found) for worker, found in sorted(last.items())}
