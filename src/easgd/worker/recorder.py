"""Keeps the clock of a worker's steps and writes its records, one line of JSON each."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from easgd.files import reason
from easgd.records import Attached, Event, Record, Step
from easgd.runtime import time

FLUSH_SECONDS = 0.5


class Recorder:
    """Splits the time of each step; what is not data, communication or waiting was computing."""

    def __init__(
        self, rank: int, incarnation: int, out: Path | None, origin: float | None = None, node: str = ""
    ) -> None:  # fmt: skip
        self.rank, self.node = rank, node
        now = time.perf_counter()
        self.start = now if origin is None else now - (time.monotonic() - origin)
        self.step_began = self._flushed = now
        self.data = self.communication = self.waiting = 0.0
        self.loss: float | None = None
        self.scalars: dict[str, float] = {}
        self._listeners: list[Callable[[Step], None]] = []
        self._file: TextIO | None = None
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            self.path = out / f"records-{rank}-{incarnation}.jsonl"
            self._file = open(self.path, "a")  # noqa: SIM115 - closed in close()

    def begin(self, origin: float) -> None:
        """Training begins: time counts from `origin`, on the machine's monotonic clock."""
        self.step_began = time.perf_counter()
        self.start = self.step_began - (time.monotonic() - origin)

    def now(self) -> float:
        """Seconds of training so far."""
        return time.perf_counter() - self.start

    def worked(self) -> float:
        """Seconds of the present step that were not lost to exchanges: its gradient and its data."""
        return max(0.0, time.perf_counter() - self.step_began - self.communication - self.waiting)

    def step(self, clock: int, staleness: int | None, distance: float | None, sent: int) -> None:
        now = time.perf_counter()
        lost = self.data + self.communication + self.waiting
        record = Step(
            self.rank, clock, now - self.start, max(0.0, now - self.step_began - lost), self.data,
            self.communication, self.waiting, staleness, distance, sent, self.loss, self.scalars or None,
        )  # fmt: skip
        self.write(record)
        for listener in self._listeners:
            listener(record)
        self.step_began = now
        self.data = self.communication = self.waiting = 0.0
        self.loss, self.scalars = None, {}

    def log(self, scalars: dict[str, float]) -> None:
        """Add the user's own numbers to the record of the present step."""
        numbers = {name: float(value) for name, value in scalars.items()}
        self.loss = numbers.pop("loss", self.loss)
        self.scalars = {**self.scalars, **numbers}

    def listen(self, listener: Callable[[Step], None]) -> None:
        """Call `listener` with the record of every step from now on, whether or not there is a file."""
        self._listeners.append(listener)

    def event(self, kind: str, detail: str = "", attached: Attached | None = None) -> None:
        """Record something that is not a step: a death, a join, a refused exchange."""
        self.write(Event(kind, self.now(), self.rank, detail, self.node, attached))

    def write(self, record: Record) -> None:
        """Write one line; it reaches the file within half a second, so that a killed worker loses no more."""
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(record.as_dict()) + "\n")
        except OSError as error:
            self._lost(error)
            return
        if isinstance(record, Event) or time.perf_counter() - self._flushed > FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Let the file have all that was recorded. A full disk costs the records, not the training."""
        self._flushed = time.perf_counter()
        try:
            if self._file is not None:
                self._file.flush()
        except OSError as error:
            self._lost(error)

    def _lost(self, error: OSError) -> None:
        """Say once that records end here, and train on."""
        why = reason(error)
        print(f"easgd: warning: worker {self.rank} no longer records in {self.path} ({why})", file=sys.stderr)
        self.loss, self.scalars = None, {}
        self.close()

    def timed(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Pass batches through, counting the time they take as data time."""
        iterator = iter(batches)
        while True:
            start = time.perf_counter()
            try:
                batch = next(iterator)
            except StopIteration:
                return
            finally:
                self.data += time.perf_counter() - start
            yield batch

    def abandon(self) -> None:
        """Close the file without what is buffered: another process has the same lines, and writes them."""
        if self._file is not None:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._file.fileno())
            os.close(nowhere)
            self.close()

    def close(self) -> None:
        """Flush and close the file; a disk that does not take it costs the records only."""
        if self.scalars or self.loss is not None:  # logged after the last step
            late = self.scalars | ({} if self.loss is None else {"loss": self.loss})
            self.loss, self.scalars = None, {}
            self.event("log", json.dumps(late))
        if self._file is not None:
            file, self._file = self._file, None
            with suppress(OSError):
                file.close()


class TimedLoader:
    """A loader whose waiting time is counted as data time."""

    def __init__(self, loader: Any, recorder: Recorder) -> None:
        self.loader, self.recorder = loader, recorder

    def __iter__(self) -> Iterator[Any]:
        return self.recorder.timed(self.loader)

    def __len__(self) -> int:
        return len(self.loader)
