"""Temporary folders that outlive no killed process for long: the next one that makes such a folder removes them.

Its maker holds a lock on a file in it for as long as it lives; a folder whose lock is free is nobody's.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

OWNER = ".easgd-owner"
_HELD: dict[Path, int] = {}


def make_scratch(prefix: str, where: str | None = None) -> Path:
    """Make a folder that is this process's alone; what killed processes left beside it is removed."""
    place = where or tempfile.gettempdir()
    clean_scratch(place)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=place))
    draft = folder / f"{OWNER}.new"
    descriptor = os.open(draft, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    draft.rename(folder / OWNER)  # under its name it is locked from the first moment
    _HELD[folder] = descriptor
    return folder


def remove_scratch(folder: Path) -> None:
    """Remove a folder that this process has made."""
    shutil.rmtree(folder, ignore_errors=True)
    if (descriptor := _HELD.pop(folder, None)) is not None:
        os.close(descriptor)


def clean_scratch(where: str) -> list[Path]:
    """Remove the folders of this user whose makers were killed; return them. Weights that were saved there stay."""
    cleaned = []
    for owner in Path(where).glob(f"easgd-*/{OWNER}"):
        folder = owner.parent
        if folder in _HELD or list(folder.glob("weights-*")):
            continue
        with suppress(OSError):  # another user's, or somebody else removes it now
            descriptor = os.open(owner, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if os.fstat(descriptor).st_uid == os.getuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder, ignore_errors=True)
                    cleaned.append(folder)
            finally:
                os.close(descriptor)
    return cleaned
