"""Write a data file. It gets its name when it is complete, so a reader never finds a partial one."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zlib
from array import array
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from easgd.data.format import MAGIC, PREFIX, VERSION, Bytes
from easgd.errors import refuse
from easgd.files import atomic

_PAGE = 4096


class Writer:
    """Write a data set image by image; the file appears when the `with` block ends without an exception.

    `shape` is (height, width), or None where sizes vary. Images go to disk as they come, so the set may be larger than
    memory. A writer that is killed leaves a hidden file, which the next writer of the same data set removes.
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
        # The header comes first in the file and is written last: keep room for it with its largest numbers.
        self._start = -(-(PREFIX.size + len(json.dumps(self._fields)) + 400) // _PAGE) * _PAGE

    def __enter__(self) -> Writer:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(self.path)
        self._digest = hashlib.sha256()
        # Left in reverse order: the header is written, the file closed, then renamed; an exception skips what follows.
        self._stack = contextlib.ExitStack()
        self._file = self._stack.enter_context(open(self._stack.enter_context(atomic(self.path, sync=True)), "wb"))
        self._stack.push(lambda kind, error, trace: self._finish() if kind is None else None)
        self._file.seek(self._start)
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
        self._stack.__exit__(kind, error, trace)

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


def _remove_stale(path: Path) -> None:
    for old in path.parent.glob(f".{path.name}.*.tmp"):
        if not is_alive(old.name.split(".")[-2]):
            old.unlink(missing_ok=True)


def is_alive(pid: str) -> bool:
    """Return whether a process with this number exists. What a dead one left behind may be removed."""
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:  # it exists and belongs to another user
        pass
    return True
