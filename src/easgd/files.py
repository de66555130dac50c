"""Atomic writing, and small files of JSON and JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


@contextmanager
def atomic(path: str | os.PathLike[str], *, sync: bool = False) -> Iterator[Path]:
    """Give a scratch file that is renamed to `path` when the block ends well: a reader finds the old or the new file.

    Args:
        path: the file to write.
        sync: flush the content to the disk before the renaming, so that a crash of the machine leaves no torn file.
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
    with suppress(OSError, ValueError, RecursionError):
        data = json.loads(path.read_text())
        return data if isinstance(data, dict) else None
    return None


def parse_json_line(line: bytes | str) -> dict[str, Any] | None:
    """Return the object of one line; None if the line is torn, as a killed writer leaves it."""
    with suppress(ValueError, RecursionError):
        data = json.loads(line)
        return data if isinstance(data, dict) else None
    return None


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of JSON lines, without torn lines; nothing if there is no such file."""
    if path.exists():
        with open(path, "rb") as file:
            yield from filter(None, map(parse_json_line, file))


def reason(error: OSError) -> str:
    """Say in a few words why the system refused, for a message of one line."""
    return (error.strerror or str(error)).lower()
