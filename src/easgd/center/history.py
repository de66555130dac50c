"""The history of a center: every change of it, in order, so that it can be replayed (`easgd.center.check_history`).

A history is a folder of files of frames, one file for each process that changes the center. A frame is an `Entry` as
JSON and, behind it, the vectors that a replay needs. It is in the file *before* the change is made: of a process that
is killed in between, the entry is there, and the next entry of the same stretch tells what became of it.

Recording is off unless somebody asks for it: it writes as many bytes to the disk as the exchanges move.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor

from easgd.center.digests import digest
from easgd.console import warn_once
from easgd.files import read_json_lines
from easgd.methods import Method, Slots, registry

if TYPE_CHECKING:
    from easgd.center.state import CenterState

SUFFIX = ".history"
_HEAD = struct.Struct("<4sIIQI")  # magic, bytes and checksum of the entry, bytes and checksum of its vectors
_MAGIC = b"EAH1"
MOST_ENTRY_BYTES = 1 << 24
Kind = Literal["open", "apply", "add", "round", "average", "answer", "roll", "restore", "end"]


class Sender(NamedTuple):
    """Whose exchange changes the center; a rank of -1 where nobody says."""

    rank: int = -1
    incarnation: int = 0
    sequence: int = -1
    living: int = 0
    """How many workers the center counts; 0 where it does not say."""


class Entry(msgspec.Struct, omit_defaults=True):
    """What happened to a stretch of the center.

        open      it got its start value: all vectors, the clock, the method
        apply     a message met it, with this scale; `rounded` if the change went through the codec
        add       a worker's change was added to the sum of a round
        round     the sum of a round was absorbed
        average   the time average began anew
        answer    what a worker took of an elastic exchange: only the digest
        roll      the members changed: their number `serial`, who they are, and how many the center counts (`living`)
        restore   it went back to a saved state, as a new epoch
        end       its last value, as digests of all vectors

    Attributes:
        order: entries of a stretch happened in this order, within an epoch.
        version: the stretch's clock before the change.
        digest: of x̃ before the change; of an answer, of the answer.
        names: the vectors behind the entry, each with `stop - start` elements.
    """

    kind: Kind
    order: int = 0
    epoch: int = 0
    start: int = 0
    stop: int = 0
    version: int = 0
    digest: int = 0
    rank: int = -1
    incarnation: int = 0
    sequence: int = -1
    living: int = 0
    scale: float = 1.0
    rounded: bool = False
    names: list[str] = []
    dtype: str = "float32"
    clock: list[int] = []
    digests: dict[str, int] = {}
    method: str = ""
    settings: dict[str, Any] = {}
    codec: str = ""
    fused: bool = True
    serial: int = 0
    members: list[int] = []
    dead: dict[int, int] = {}


class Frame(NamedTuple):
    """An entry, where it was written, and its vectors as bytes."""

    entry: Entry
    source: str
    payload: memoryview

    def vectors(self) -> Slots:
        """Return copies of the vectors by name."""
        e, n = self.entry, self.entry.stop - self.entry.start
        whole = np.frombuffer(self.payload, dtype=e.dtype)
        return {name: torch.from_numpy(whole[k * n : (k + 1) * n].copy()) for k, name in enumerate(e.names)}


# writing -------------------------------------------------------------------------------------------------------


class History:
    """Where one process writes what it does to a center.

    Args:
        file: a path, which is appended to, or a binary file that is open for writing.
        order: gives numbers that grow over all processes that change the same stretch; by default a count, which
            suffices where there is one.

    Attributes:
        sender: whose exchange is being applied; the owner sets it.
    """

    def __init__(self, file: Path | BinaryIO, order: Callable[[], int] | None = None) -> None:
        self.sender = Sender()
        self._order = order or itertools.count().__next__
        # Unbuffered: what was written outlives a process that is killed.
        self._file = open(file, "ab", buffering=0) if isinstance(file, Path) else file  # noqa: SIM115
        self._lost = False

    def write(self, entry: Entry, vectors: Mapping[str, Tensor] | None = None) -> None:
        """Append one frame. A full disk costs the rest of the history, not the training."""
        entry.order, entry.names = self._order(), [*(vectors or {})]
        payload = b"".join(vector.detach().contiguous().numpy().tobytes() for vector in (vectors or {}).values())
        if vectors:
            entry.dtype = str(next(iter(vectors.values())).dtype).removeprefix("torch.")
        text = msgspec.json.encode(entry)
        head = _HEAD.pack(_MAGIC, len(text), zlib.crc32(text), len(payload), zlib.crc32(payload))
        try:
            if not self._lost:
                self._file.write(head + text + payload)
        except OSError as error:
            self._lost = True
            warn_once(f"the history of the center ends here: {error}")

    def roll(self, serial: int, members: list[int], living: int, dead: Mapping[int, int] | None = None) -> None:
        """Note who is in the run."""
        self.write(Entry("roll", serial=serial, members=sorted(members), living=living, dead=dict(dead or {})))

    def answer(self, vector: Tensor, start: int) -> None:
        """Note what the sender takes of an elastic exchange with the fragment that begins at `start`."""
        rank, incarnation, sequence, _ = self.sender
        self.write(Entry("answer", rank=rank, incarnation=incarnation, sequence=sequence, digest=digest(vector, start)))

    def close(self) -> None:
        self._file.close()


class Journal:
    """The history of one stretch; `CenterState` writes into it before it changes anything."""

    def __init__(self, history: History, start: int, stop: int, epoch: int = 0) -> None:
        self.history, self.start, self.stop, self.epoch = history, start, stop, epoch

    def opened(self, state: CenterState, kind: Literal["open", "restore"] = "open", codec: str = "") -> None:
        """Note the vectors and the clock from which the stretch goes on."""
        name, settings = described(state.method)
        entry = self._entry(kind, state)
        entry.method, entry.settings, entry.codec = name, settings, codec
        entry.clock, entry.fused = state.clock, state.fused
        self.history.write(entry, state.slots)

    def note(self, state: CenterState, kind: Kind, vector: Tensor | None = None, scale: float = 1.0,
             rounded: bool = False) -> None:  # fmt: skip
        """Note a change that is about to be made."""
        entry = self._entry(kind, state)
        entry.rank, entry.incarnation, entry.sequence, entry.living = self.history.sender
        entry.scale, entry.rounded = scale, rounded
        self.history.write(entry, None if vector is None else {"message": vector})

    def ended(self, state: CenterState) -> None:
        """Note the last value."""
        entry = self._entry("end", state)
        entry.clock = state.clock
        entry.digests = {name: digest(vector, self.start) for name, vector in state.slots.items()}
        self.history.write(entry)

    def _entry(self, kind: Kind, state: CenterState) -> Entry:
        return Entry(
            kind, epoch=self.epoch, start=self.start, stop=self.stop, version=state.version,
            digest=digest(state.x, self.start),
        )  # fmt: skip


def described(method: Method) -> tuple[str, dict[str, Any]]:
    """Return the name by which other processes find a method, and its settings."""
    kind = type(method)
    known = kind.key in registry.built_in() and registry.get(kind.key) is kind
    settings = {each.name: getattr(method, each.name) for each in fields(method) if each.init}
    # A number that knows where it comes from, as a default momentum does, is written as the number it is.
    plain = {name: float(value) if isinstance(value, float) else value for name, value in settings.items()}
    return kind.key if known else f"{kind.__module__}:{kind.__qualname__}", plain


# reading -------------------------------------------------------------------------------------------------------


def frames(data: bytes | memoryview, source: str = "") -> Iterator[Frame]:
    """Yield the frames of one file. A torn one at the end is that of a killed writer, and is left out.

    Raises ValueError for bytes that no writer leaves: nothing is allocated for lengths that the file does not have.
    """
    view, at = memoryview(data), 0
    while at + _HEAD.size <= len(view):
        magic, size, check, length, sum_ = _HEAD.unpack_from(view, at)
        if magic != _MAGIC or size > MOST_ENTRY_BYTES:
            raise ValueError(f"{source}: no entry of a history at byte {at}")
        text, end = at + _HEAD.size, at + _HEAD.size + size + length
        if end > len(view):
            return
        payload = view[text + size : end]
        if zlib.crc32(view[text : text + size]) != check or zlib.crc32(payload) != sum_:
            raise ValueError(f"{source}: the entry at byte {at} is damaged")
        try:
            entry = msgspec.json.decode(view[text : text + size], type=Entry)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ValueError(f"{source}: the entry at byte {at} cannot be read ({error})") from error
        if not _fits(entry, length):
            raise ValueError(f"{source}: the entry at byte {at} has {length} bytes of vectors, not what it says")
        yield Frame(entry, source, payload)
        at = end


def _fits(entry: Entry, length: int) -> bool:
    size = {"float32": 4, "float64": 8}.get(entry.dtype, 0)
    return 0 <= entry.start <= entry.stop and length == len(entry.names) * (entry.stop - entry.start) * size


def read_file(path: Path) -> Iterator[Frame]:
    """Yield the frames of a file, which is mapped and not held in memory."""
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size:
            yield from frames(memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)), path.name)


def read_folder(folder: Path) -> Iterator[Frame]:
    """Yield the frames of one center's history, file by file; also rolls that were written as lines of JSON."""
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        yield from read_file(path)
    for path in sorted(folder.glob("*.jsonl")):
        for line in read_json_lines(path):
            try:
                entry = msgspec.convert({**line, "kind": "roll"}, Entry)
            except msgspec.MsgspecError as error:
                raise ValueError(f"{path.name}: a line is no roll ({error})") from error
            yield Frame(entry, path.name, memoryview(b""))
