"""Write a data set's file: under no name until it is whole, so that nothing half-written is ever found."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from easgd.data.format import MAGIC, PREFIX, VERSION, Bytes
from easgd.errors import refuse

_PAGE = 4096


class Writer:
    """Write a data set image by image; the file appears, whole, when the `with` block ends without an exception.

    `shape` is (height, width), or None where sizes vary. The images may be more than memory holds.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        name: str,
        split: str,
        classes: Sequence[str],
        channels: int,
        shape: tuple[int, int] | None,
        source: str = "",
    ) -> None:
        self.path = Path(path)
        self.shape, self.channels = shape, channels
        self._fields: dict[str, Any] = {
            "version": VERSION,
            "name": name,
            "split": split,
            "count": 0,
            "shape": [*(shape or (None, None)), channels],
            "classes": list(classes),
            "source": source,
        }
        self._labels = array("i")
        self._index = array("q")
        self._written = 0
        # Room for the header as it will be with its largest numbers.
        self._start = -(-(PREFIX.size + len(json.dumps(self._fields)) + 400) // _PAGE) * _PAGE

    def __enter__(self) -> Writer:
        self._stack = contextlib.ExitStack()
        self._file, self._publish = self._stack.enter_context(unnamed(self.path))
        self._file.seek(self._start)
        self._digest = hashlib.sha256()
        return self

    def add(self, image: Bytes, label: int) -> None:
        """Append one image [height, width, channels]."""
        self.add_many(image[None], [label])

    def add_many(self, images: Bytes, labels: Sequence[int] | npt.NDArray[Any]) -> None:
        """Append images of one size, [n, height, width, channels]."""
        n, height, width, channels = images.shape
        if channels != self.channels or (self.shape is not None and (height, width) != self.shape) or n != len(labels):
            raise ValueError(f"images {images.shape}, {len(labels)} labels for a file of {self.shape}×{self.channels}")
        if images.dtype != np.uint8:
            raise ValueError(f"images of dtype {images.dtype}: write uint8")
        if self.shape is None:
            each = height * width * channels
            for i in range(n):
                self._index.extend((self._written + i * each, height, width))
        self._put(np.ascontiguousarray(images).tobytes())
        self._labels.extend(int(label) for label in labels)

    def _put(self, data: bytes) -> None:
        self._file.write(data)
        self._digest.update(data)
        self._written += len(data)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._stack:
            if error is None:
                self._finish()
                self._publish()

    def _finish(self) -> None:
        if not self._labels:
            raise refuse("data set", self.path.name, "it would have no images", "check the source")
        sections = {"images": (self._start, self._written)}
        self._put(b"\0" * (-self._written % 8))
        if self.shape is None:
            sections["index"] = self._section(np.array(self._index, "<i8"))
        sections["labels"] = self._section(np.array(self._labels, "<i4"))
        fields = self._fields | {"count": len(self._labels), "sections": sections, "sha256": self._digest.hexdigest()}
        text = json.dumps(fields).encode()
        assert PREFIX.size + len(text) <= self._start
        self._file.seek(0)
        self._file.write(PREFIX.pack(MAGIC, len(text), zlib.crc32(text)) + text)

    def _section(self, values: npt.NDArray[Any]) -> tuple[int, int]:
        start = self._start + self._written
        self._put(values.tobytes())
        return start, values.nbytes


@contextlib.contextmanager
def unnamed(path: Path) -> Iterator[tuple[BinaryIO, Callable[[], None]]]:
    """Open a file that has no name until the second value is called: a killed process leaves nothing behind.

    Where the system has no unnamed files (`O_TMPFILE` is Linux's), the file has a name that ends in `.partial`; those
    of dead processes are removed by the next writer.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    _remove_stale(path)
    descriptor = _unnamed_descriptor(path.parent)
    named = descriptor is None
    if descriptor is None:
        descriptor = os.open(partial, os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o644)
    try:
        with os.fdopen(descriptor, "w+b") as file:

            def publish() -> None:
                file.flush()
                os.fsync(file.fileno())
                if not named:
                    _link(file.fileno(), partial)
                # A link cannot replace an existing file, a rename can.
                os.replace(partial, path)

            yield file, publish
    finally:
        partial.unlink(missing_ok=True)


def _unnamed_descriptor(folder: Path) -> int | None:
    if not hasattr(os, "O_TMPFILE") or not os.path.isdir("/proc/self/fd"):
        return None
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o644)
    except OSError:
        return None


def _link(descriptor: int, target: Path) -> None:
    # Python follows the symbolic link in /proc only if a directory is given along with it (it then calls linkat).
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.link(f"/proc/self/fd/{descriptor}", target, src_dir_fd=folder, follow_symlinks=True)
    finally:
        os.close(folder)


def _remove_stale(path: Path) -> None:
    for old in path.parent.glob(f".{path.name}.*.partial"):
        if not is_alive(old.name.split(".")[-2]):
            old.unlink(missing_ok=True)


def is_alive(pid: str) -> bool:
    """Tell whether a process of this number exists: what a dead one left behind may be removed."""
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True
