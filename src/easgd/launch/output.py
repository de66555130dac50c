"""A worker's output: raw into its log, line by line with its rank in front onto the terminal."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO, Literal

from easgd.console import show

Terminal = Literal["stdout", "stderr"]
_CHUNK = 1 << 16
_LAST_CHUNKS = 64  # as much as a pipe can hold; a process that inherited it may still be writing


def say(message: str) -> None:
    """Print a message of the launcher itself, on stderr."""
    show(f"easgd: {message}\n", "stderr")


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
        if self._file is not None:
            self._file.close()
            self._file = None


class LineRelay:
    """What a worker writes to one of its terminals: into the log as it is, shown line by line with the rank."""

    def __init__(self, label: str, log: Log, to: Terminal) -> None:
        self.prefix, self.log, self.to = f"[{label}] ", log, to
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Log these bytes, and show the lines that end in them."""
        self.log.write(data)
        lines = (self._rest + data).split(b"\n")
        # A very long piece without a line end counts as a line.
        self._rest = lines.pop() if len(lines[-1]) <= _CHUNK else b""
        self._print(lines)

    def _print(self, lines: list[bytes]) -> None:
        if not lines:
            return
        # Of a progress bar that draws over itself, keep what a terminal would show in the end.
        shown = (line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace") for line in lines)
        show("".join(f"{self.prefix}{line}\n" for line in shown), self.to)

    def finish(self) -> None:
        """Show a last line without an end."""
        if self._rest:
            self._print([self._rest])
            self._rest = b""


class PipeRelay(LineRelay):
    """One pipe from a worker. Reading never blocks, so a silent worker holds up no other."""

    def __init__(self, descriptor: int, label: str, log: Log, to: Terminal) -> None:
        super().__init__(label, log, to)
        os.set_blocking(descriptor, False)
        self.descriptor = descriptor

    def pump(self) -> bool:
        """Pass on one chunk, so that one worker's flood does not hold up the others; return whether one was there."""
        try:
            data = os.read(self.descriptor, _CHUNK)
        except BlockingIOError:
            return False
        self.feed(data)
        return bool(data)

    def finish(self) -> None:
        """Pass on the rest of a worker that has ended."""
        for _ in range(_LAST_CHUNKS):
            if not self.pump():
                break
        super().finish()
