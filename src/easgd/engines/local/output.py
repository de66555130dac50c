"""A worker's output: raw into its log, line by line with its rank in front onto the terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import BinaryIO, Literal

_CHUNK = 1 << 16


def say(message: str) -> None:
    """Print the launcher's own word, apart from what the workers print."""
    print(f"easgd: {message}", file=sys.stderr, flush=True)


class Log:
    """A worker's log file. A full disk costs the log, not the training."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 (it lives as long as the worker)
        except OSError as error:
            say(f"warning: no log {path}: {error.strerror}")

    def write(self, data: bytes) -> None:
        """Append; after a first failure, warn and stop."""
        try:
            if self._file is not None:
                self._file.write(data)
        except OSError as error:
            say(f"warning: the log {self.path} ends here: {error.strerror}")
            self.close()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class Stream:
    """One pipe from a worker. Reading never blocks, so a silent worker delays nobody."""

    def __init__(self, descriptor: int, rank: int, log: Log, to: Literal["stdout", "stderr"]) -> None:
        os.set_blocking(descriptor, False)
        self.descriptor, self.prefix, self.log, self.to = descriptor, f"[{rank}] ", log, to
        self._rest = b""

    def pump(self) -> bool:
        """Pass on what is there; return whether more may come."""
        while True:
            try:
                data = os.read(self.descriptor, _CHUNK)
            except BlockingIOError:
                return True
            self.log.write(data)
            lines = (self._rest + data).split(b"\n")
            # Without an end in sight, or at the end of all, a piece counts as a line.
            self._rest = b"" if not data or len(lines[-1]) > _CHUNK else lines.pop()
            self._print([line for line in lines if line or data])
            if not data:
                return False
            if len(data) < _CHUNK:
                return True

    def _print(self, lines: list[bytes]) -> None:
        if not lines:
            return
        # Of a progress bar that draws over itself, keep what a terminal would show in the end.
        shown = (line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace") for line in lines)
        terminal = getattr(sys, self.to)
        terminal.write("".join(f"{self.prefix}{line}\n" for line in shown))
        terminal.flush()

    def finish(self) -> None:
        """Pass on the rest of a worker that has ended."""
        if self.pump() and self._rest:
            self._print([self._rest])
