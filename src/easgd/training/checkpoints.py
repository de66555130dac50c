"""Checkpoints of a run: the last two are kept, each appears whole or not at all, and a damaged one is passed over.

A checkpoint is a folder of states, one per part (`simulation`, or `center` and `worker-<rank>`), written under a hidden
name and renamed when it is complete. A full disk costs the checkpoint, not the training.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from easgd import checkpoint
from easgd.errors import SettingError

KEEP = 2
SUFFIX = ".safetensors"


class Checkpoints:
    """The checkpoints folder of a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def whole(self) -> list[Path]:
        """Complete checkpoints, the newest first."""
        return sorted((p for p in self.folder.glob("[0-9]*") if p.is_dir()), reverse=True)

    def next_number(self) -> int:
        """A number larger than that of any checkpoint."""
        return int(newest[0].name) + 1 if (newest := self.whole()) else 1

    def draft(self, number: int) -> Path:
        """Where the parts of a checkpoint that is being written lie."""
        return self.folder / f".{number:06d}"

    def save(self, parts: dict[str, dict[str, Any]]) -> bool:
        """Write a checkpoint of these parts; False, with a loud warning, if the disk does not take it."""
        number = self.next_number()
        try:
            self.draft(number).mkdir(parents=True, exist_ok=True)
            for name, state in parts.items():
                checkpoint.save(self.draft(number) / f"{name}{SUFFIX}", state)
            self.publish(number)
        except OSError as error:
            self.failed(number, error)
            return False
        return True

    def publish(self, number: int) -> None:
        """All parts are written: give the checkpoint its name, then let go of the oldest."""
        for path in self.draft(number).glob("*.tmp"):
            path.unlink()
        os.replace(self.draft(number), self.folder / f"{number:06d}")
        for old in self.whole()[KEEP:]:
            shutil.rmtree(old, ignore_errors=True)

    def failed(self, number: int, error: OSError) -> None:
        """Say that there is no new checkpoint, and that the run goes on."""
        shutil.rmtree(self.draft(number), ignore_errors=True)
        kept = f"the last is {self.whole()[0].name}" if self.whole() else "there is none yet"
        why = (error.strerror or str(error)).lower()
        print(f"easgd: warning: no checkpoint {number} in {self.folder} ({why}); {kept}; going on", file=sys.stderr)

    def load(self, *, clean: bool = True) -> dict[str, dict[str, Any]] | None:
        """The parts of the newest checkpoint that is undamaged; None if there is none at all.

        Whoever owns the run also cleans up what a killed writer left.
        """
        if clean:
            self.clean()
        found = self.whole()
        for path in found:
            try:
                return {p.name.removesuffix(SUFFIX): checkpoint.load(p) for p in sorted(path.glob(f"*{SUFFIX}"))}
            except SettingError as error:
                print(f"easgd: warning: {error}", file=sys.stderr)
        if found:
            raise SettingError(f"{self.folder}: all {len(found)} checkpoints are damaged; start the run anew")
        return None

    def clean(self) -> None:
        """Remove what a killed writer left."""
        for path in self.folder.glob(".*"):
            shutil.rmtree(path, ignore_errors=True)


class LineFile:
    """A file of JSON lines that can be cut back to what a checkpoint knew of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open(path, "ab")  # noqa: SIM115 - closed in close()
        self._warned = False

    def write(self, line: str) -> None:
        """Append a line; a full disk loses it, with one warning."""
        try:
            self._file.write(line.encode() + b"\n")
        except OSError as error:
            self._lost(error)

    def _lost(self, error: OSError) -> None:
        if not self._warned:
            why = (error.strerror or str(error)).lower()
            print(f"easgd: warning: {self.path} is no longer written ({why}); going on", file=sys.stderr)
        self._warned = True

    def position(self) -> int:
        """How many bytes are safely written."""
        try:
            self._file.flush()
        except OSError as error:
            self._lost(error)
        return self._file.tell()

    def cut(self, position: int) -> None:
        """Forget what was written after `position`."""
        self._file.flush()
        self._file.truncate(min(position, self.path.stat().st_size))
        self._file.seek(0, os.SEEK_END)

    def close(self) -> None:
        """Write the rest."""
        with suppress(OSError):
            self._file.close()
