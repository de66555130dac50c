"""Reads the records of a run while they are being written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from easgd.records import Record, parse


class Tail:
    """All `records-*.jsonl` of a folder, each from where it was last read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[Path, int] = {}

    def skip(self) -> None:
        """Count what is there as read."""
        for path in self.folder.glob("records-*.jsonl"):
            self._read[path] = path.stat().st_size

    def read(self) -> Iterator[Record]:
        """Yield the whole lines that have come since the last call."""
        for path in sorted(self.folder.glob("records-*.jsonl")):
            start = self._read.get(path, 0)
            with open(path, "rb") as file:
                file.seek(start)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read[path] = start + len(whole)
            yield from filter(None, map(parse, whole.splitlines()))
