"""One data set as one memory-mapped file: raw uint8 images, labels, and a small checked header.

    8 bytes   magic                       "EASGDIMG"
    4 + 4     length of the header, its CRC-32 (little-endian unsigned)
    …         header, JSON                count, shape, classes, sections, SHA-256 of the sections
    4096·n    images                      height × width × channels each, one after the other
    …         index, only if sizes vary   int64 (offset, height, width) per image
    …         labels                      int32 per image

Channels come last, so that a row of a crop is one contiguous run of bytes and a batch is `channels_last` without a
copy. Nothing in the file is executed or unpickled. Opening checks the header and the length, `verify` reads every byte.
`easgd.data.write` writes such files.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from easgd.errors import SettingError, refuse
from easgd.files import reason

MAGIC = b"EASGDIMG"
VERSION = 1
SUFFIX = ".easgd"
PREFIX = struct.Struct("<8sII")

Bytes = npt.NDArray[np.uint8]
Ints = npt.NDArray[np.int64]


class ImageFile:
    """A data set opened for reading, through a memory map: the process does not hold its pixels.

    `images` is [count, height, width, channels] if all images have one size, and None if sizes vary; `image(i)` works
    for both. Pickling stores the path alone.

    >>> import easgd.data
    >>> file = easgd.data.load("digits")
    >>> len(file), file.images.shape, file.image(3).shape
    (1433, (1433, 8, 8, 1), (8, 8, 1))
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with _open(self.path) as file:
            try:
                self.header = _read_header(file, self.path)
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                self._describe(self.header)
            except SettingError:
                raise
            except (KeyError, TypeError, ValueError):
                raise _bad(self.path, "its header contradicts itself") from None

    def _describe(self, header: dict[str, Any]) -> None:
        self.name: str = header["name"]
        self.split: str = header["split"]
        self.count: int = header["count"]
        self.classes: list[str] = header["classes"]
        height, width, self.channels = header["shape"]
        self.shape: tuple[int, int] | None = None if height is None else (height, width)
        whole = np.frombuffer(self._map, np.uint8)
        sections = {key: whole[start : start + size] for key, (start, size) in header["sections"].items()}
        self.data_start: int = header["sections"]["images"][0]
        self.pixels: Bytes = sections["images"]
        self.labels: npt.NDArray[np.int32] = sections["labels"].view("<i4").reshape(self.count)
        self._index: Ints | None = None
        self.images: Bytes | None = None
        if self.shape is None:
            self._index = sections["index"].view("<i8").reshape(self.count, 3)
        else:
            self.images = self.pixels.reshape(self.count, *self.shape, self.channels)

    def __len__(self) -> int:
        return self.count

    def __reduce__(self) -> tuple[type[ImageFile], tuple[Path]]:
        return ImageFile, (self.path,)

    def __repr__(self) -> str:
        return (
            f"ImageFile({self.name}-{self.split}: {self.count} images {self.size_text()}, {len(self.classes)} classes)"
        )

    def size_text(self) -> str:
        """Return the size of an image as text: `32×32×3`, or `varying×3`."""
        size = "varying" if self.shape is None else "×".join(map(str, self.shape))
        return f"{size}×{self.channels}"

    @property
    def smallest(self) -> int:
        """The shortest side of any image."""
        return int(self._index[:, 1:].min()) if self._index is not None else min(self.shape or (0,))

    def image(self, i: int) -> Bytes:
        """Return image i as [height, width, channels], a view of the map."""
        if self.images is not None:
            view: Bytes = self.images[i]
            return view
        assert self._index is not None
        start, height, width = (int(v) for v in self._index[i])
        return self.pixels[start : start + height * width * self.channels].reshape(height, width, self.channels)

    def places(self, rows: Ints) -> tuple[Ints, Ints, Ints]:
        """Return where in `pixels` the images `rows` start, and their heights and widths."""
        if self._index is not None:
            start, height, width = self._index[rows].T
            return start, height, width
        if len(rows) and not 0 <= rows.min() <= rows.max() < self.count:
            raise IndexError(f"images {rows.min()}..{rows.max()} of {self.count}")
        height, width = self.shape or (0, 0)
        return rows * (height * width * self.channels), np.full(len(rows), height), np.full(len(rows), width)

    def will_need(self, first: int, last: int) -> None:
        """Ask the kernel to read images first..last−1 ahead, in one sequential pass."""
        if self._index is None:
            assert self.shape is not None
            each = self.shape[0] * self.shape[1] * self.channels
            start, stop = first * each, last * each
        else:
            start = int(self._index[first, 0])
            stop = int(self._index[last, 0]) if last < self.count else len(self.pixels)
        start += self.data_start
        aligned = start // mmap.PAGESIZE * mmap.PAGESIZE
        self._map.madvise(mmap.MADV_WILLNEED, aligned, min(stop + self.data_start, len(self._map)) - aligned)

    def verify(self, progress: Callable[[int, int, str], None] | None = None) -> None:
        """Read every byte; raise a `SettingError` if the checksum or a label is wrong."""
        digest = hashlib.sha256()
        for start in range(self.data_start, len(self._map), 1 << 22):
            digest.update(self._map[start : start + (1 << 22)])
            if progress is not None:
                progress(start, len(self._map), f"reading {self.path.name}")
        if digest.hexdigest() != self.header["sha256"]:
            raise _bad(self.path, "its checksum does not match its contents")
        if int(self.labels.min()) < 0 or int(self.labels.max()) >= len(self.classes):
            raise _bad(self.path, f"it has a label outside its {len(self.classes)} classes")


def _open(path: Path) -> BinaryIO:
    try:
        return open(path, "rb")
    except OSError as error:
        raise refuse("data file", path, reason(error), "see `easgd data list`") from None


def _read_header(file: BinaryIO, path: Path) -> dict[str, Any]:
    size = os.fstat(file.fileno()).st_size
    prefix = file.read(PREFIX.size)
    if len(prefix) < PREFIX.size or prefix[:8] != MAGIC:
        raise _bad(path, "it is not an easgd data file")
    _, length, crc = PREFIX.unpack(prefix)
    text = file.read(length)
    if len(text) != length or zlib.crc32(text) != crc:
        raise _bad(path, "its header is damaged")
    header: dict[str, Any] = json.loads(text)
    if header["version"] != VERSION:
        raise _bad(path, f"its format is version {header['version']}, this program reads {VERSION}")
    end = max(start + length for start, length in header["sections"].values())
    if size != end:
        raise _bad(path, f"it has {size} of {end} bytes")
    return header


def _bad(path: Path, why: str) -> SettingError:
    return refuse("data file", path, why, "make it again with `easgd data make`")
