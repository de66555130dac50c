"""Checkpoints of a run: the last two are kept, each is written atomically, and a damaged one is passed over.

A checkpoint is a folder of states, one per part (`simulation`, or `center` and `worker-<rank>`), written under a hidden
name and renamed when it is complete. On a full disk the checkpoint is lost and the training goes on.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from easgd import checkpoint
from easgd.console import warn, warn_once
from easgd.errors import SettingError
from easgd.files import reason

KEEP = 2
SUFFIX = ".safetensors"


class Checkpoints:
    """The checkpoints folder of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def whole(self) -> list[Path]:
        """Return the complete checkpoints, the newest first."""
        return sorted((p for p in self.folder.glob("[0-9]*") if p.is_dir()), reverse=True)

    def next_number(self) -> int:
        """Return a number larger than that of any checkpoint."""
        return int(newest[0].name) + 1 if (newest := self.whole()) else 1

    def draft(self, number: int) -> Path:
        """Return the folder in which checkpoint `number` is being written."""
        return self.folder / f".{number:06d}"

    def save(self, parts: dict[str, dict[str, Any]]) -> None:
        """Write a checkpoint of these parts; only warn if the disk does not take it."""
        self.complete(self.next_number(), parts)

    def complete(self, number: int, parts: dict[str, dict[str, Any]]) -> None:
        """Add the last parts to a draft, give the checkpoint its name, then remove the oldest."""
        draft = self.draft(number)
        try:
            draft.mkdir(parents=True, exist_ok=True)
            for name, state in parts.items():
                checkpoint.save(draft / f"{name}{SUFFIX}", state)
            for path in draft.glob("*.tmp"):  # of a writer that was killed
                path.unlink()
            os.replace(draft, self.folder / f"{number:06d}")
        except OSError as error:
            shutil.rmtree(draft, ignore_errors=True)
            kept = f"the last is {self.whole()[0].name}" if self.whole() else "there is none yet"
            warn(f"no checkpoint {number} in {self.folder} ({reason(error)}); {kept}; going on")
        for old in self.whole()[KEEP:]:
            shutil.rmtree(old, ignore_errors=True)

    def load(self, *, clean: bool = True) -> dict[str, dict[str, Any]] | None:
        """Return the parts of the newest checkpoint that is undamaged; None if there is no checkpoint.

        `clean` removes what a killed writer left: for the process that owns the run, not for its workers.
        """
        if clean:
            for path in self.folder.glob(".*"):
                shutil.rmtree(path, ignore_errors=True)
        found = self.whole()
        for path in found:
            try:
                return {p.name.removesuffix(SUFFIX): checkpoint.load(p) for p in sorted(path.glob(f"*{SUFFIX}"))}
            except SettingError as error:
                warn(str(error))
        if found:
            raise SettingError(f"{self.folder}: all {len(found)} checkpoints are damaged; start the run anew")
        return None


class LineFile:
    """A file of lines to append to. A checkpoint keeps its length; resuming cuts the file back to that.

    On a full disk lines are lost, with one warning.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open(path, "ab")  # noqa: SIM115 - closed in close()

    def write(self, line: str) -> None:
        """Append a line, buffered."""
        try:
            self._file.write(line.encode() + b"\n")
        except OSError as error:
            self._warn(error)

    def flush(self) -> bool:
        """Write out the buffer; False if the disk does not take it. What is not written stays in the buffer."""
        try:
            self._file.flush()
        except OSError as error:
            self._warn(error)
            return False
        return True

    def _warn(self, error: OSError) -> None:
        warn_once(f"{self.path} is no longer written ({reason(error)}); going on")

    def position(self) -> int:
        """Flush, and return the length of the file."""
        self.flush()
        return self._file.tell()

    def cut(self, position: int) -> None:
        """Remove everything after `position`."""
        self._file.flush()
        self._file.truncate(min(position, self.path.stat().st_size))
        self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Flush and close."""
        with suppress(OSError):
            self._file.close()
