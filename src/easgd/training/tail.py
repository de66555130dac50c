"""Follow files of lines while they are being written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")


class Tail(Generic[T]):
    """The files of `folder` that match `pattern`, each read from where the last reading ended.

    `parse` turns a line into a value, or into None for a line to leave out.
    """

    def __init__(self, folder: Path, pattern: str, parse: Callable[[bytes], T | None]) -> None:
        self.folder, self.pattern, self.parse = folder, pattern, parse
        self._read: dict[Path, int] = {}

    def skip(self) -> None:
        """Count everything that is there as read."""
        for path in self.folder.glob(self.pattern):
            self._read[path] = path.stat().st_size

    def read(self) -> Iterator[T]:
        """Yield what has been added since the last call; a line without its end waits for the next call."""
        for path in sorted(self.folder.glob(self.pattern)):
            start = self._read.get(path, 0)
            if path.stat().st_size <= start:
                continue
            with open(path, "rb") as file:
                file.seek(start)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._read[path] = start + len(whole)
            for line in whole.splitlines():
                if (value := self.parse(line)) is not None:
                    yield value
