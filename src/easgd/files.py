"""Files that appear whole or not at all, and files of JSON lines that may end in a torn one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def atomic(path: str | os.PathLike[str], *, sync: bool = False) -> Iterator[Path]:
    """Give a scratch file that takes the name `path` when the block ends well: a reader finds the old or the new one.

    Args:
        path: the file to write.
        sync: whether the content must be on the disk before the name is: a crash of the machine then loses nothing.
    """
    path = Path(path)
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield scratch
        if sync:
            with open(scratch, "rb") as file:
                os.fsync(file.fileno())
        os.replace(scratch, path)
    finally:
        scratch.unlink(missing_ok=True)


def write_json(path: Path, data: Any) -> None:
    """Write a small file of JSON, atomically."""
    with atomic(path) as scratch:
        scratch.write_text(json.dumps(data, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a small file of JSON; None if it is missing or broken."""
    with suppress(OSError, ValueError):
        data = json.loads(path.read_text())
        return data if isinstance(data, dict) else None
    return None


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the whole lines of a file of JSON lines; a torn last one is left out."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        for line in file:
            with suppress(ValueError):
                data = json.loads(line)
                if isinstance(data, dict):
                    yield data


def reason(error: OSError) -> str:
    """Say in a few words why the system refused, for a message of one line."""
    return (error.strerror or str(error)).lower()
