"""Keeps the clock of a worker's steps and writes its records, one line of JSON each."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from easgd.records import Event, Record, Step

FLUSH_SECONDS = 0.5


class Recorder:
    """Splits the time of each step; what is not data, communication or waiting was computing."""

    def __init__(self, rank: int, incarnation: int, out: Path | None, origin: float | None = None) -> None:
        self.rank = rank
        now = time.perf_counter()
        self.start = now if origin is None else now - (time.monotonic() - origin)
        self.step_began = self._flushed = now
        self.data = self.communication = self.waiting = 0.0
        self._file: TextIO | None = None
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
            self._file = open(out / f"records-{rank}-{incarnation}.jsonl", "a")  # noqa: SIM115 - closed in close()

    def step(self, clock: int, staleness: int | None, distance: float | None, sent: int) -> None:
        """A step has ended."""
        now = time.perf_counter()
        lost = self.data + self.communication + self.waiting
        self.write(
            Step(
                self.rank, clock, now - self.start, max(0.0, now - self.step_began - lost), self.data,
                self.communication, self.waiting, staleness, distance, sent,
            )
        )  # fmt: skip
        self.step_began = now
        self.data = self.communication = self.waiting = 0.0

    def event(self, kind: str, detail: str = "") -> None:
        """Something remarkable has happened."""
        self.write(Event(kind, time.perf_counter() - self.start, self.rank, detail))

    def write(self, record: Record) -> None:
        """Write one line; it reaches the file within half a second, so that a killed worker loses no more."""
        if self._file is None:
            return
        self._file.write(json.dumps(record.as_dict()) + "\n")
        now = time.perf_counter()
        if isinstance(record, Event) or now - self._flushed > FLUSH_SECONDS:
            self._file.flush()
            self._flushed = now

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

    def close(self) -> None:
        """Write the rest."""
        if self._file is not None:
            self._file.close()
            self._file = None
