"""The shared memory of a run: one mapped file with control words and the center's vectors, and a header beside it.

    control   see `easgd.center.control`
    slots     x̃, and beside it the method's `velocity`, `average` and, for synchronous rounds, `sum`; float32 each

The header has the method, the layout of the vector (names, shapes, strides) and the stripes. The first worker to
arrive writes both, under a lock; every other one checks that it brought the same model and method.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from easgd.center.control import BYTES, CENTER, HEADER, STRIPE_VERSIONS, STRIPES_MOST, Control
from easgd.errors import SettingError

_PAGE = mmap.PAGESIZE


@dataclass(frozen=True)
class Layout:
    """What the flat vector is made of; equal on all workers of a run."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @staticmethod
    def of(tensors: dict[str, Tensor]) -> Layout:
        """Describe named tensors in their order."""
        return Layout(
            tuple(tensors),
            tuple(tuple(t.shape) for t in tensors.values()),
            tuple(tuple(t.stride()) for t in tensors.values()),
            tuple(str(t.dtype) for t in tensors.values()),
        )

    @property
    def size(self) -> int:
        """Elements of the vector."""
        return sum(int(np.prod(shape, dtype=np.int64)) for shape in self.shapes)

    def differences(self, other: Layout) -> list[str]:
        """Say in what this layout (mine) differs from the other (the run's)."""
        mine, theirs = (
            {n: (s, st, d) for n, s, st, d in zip(x.names, x.shapes, x.strides, x.dtypes, strict=True)}
            for x in (self, other)
        )
        out = [f"{n} is not in the run" for n in mine if n not in theirs]
        out += [f"{n} is missing here" for n in theirs if n not in mine]
        for name in mine:
            for what, a, b in zip(("shape", "stride", "dtype"), mine[name], theirs.get(name, mine[name]), strict=True):
                if a != b:
                    out.append(f"{name} has {what} {a} here, {b} in the run")
                    break
        if not out and self.names != other.names:
            out.append("the parameters come in another order")
        return out

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Cut a flat vector into the tensors it is made of, in their own shape, stride and dtype."""
        out, at = {}, 0
        for name, shape, stride, dtype in zip(self.names, self.shapes, self.strides, self.dtypes, strict=True):
            n = int(np.prod(shape, dtype=np.int64))
            piece = vector[at : at + n].as_strided(shape, stride)
            out[name] = piece.to(getattr(torch, dtype.removeprefix("torch."))).clone()
            at += n
        return out

    def as_json(self) -> dict[str, Any]:
        """For the header."""
        return {"names": self.names, "shapes": self.shapes, "strides": self.strides, "dtypes": self.dtypes}

    @staticmethod
    def from_json(data: dict[str, Any]) -> Layout:
        """From the header."""
        return Layout(
            tuple(data["names"]),
            tuple(tuple(s) for s in data["shapes"]),
            tuple(tuple(s) for s in data["strides"]),
            tuple(data["dtypes"]),
        )


def stripes_for(size: int) -> int:
    """How many stripes a vector gets: locks cost more than they free on a small one, 32 suffice for a large one."""
    return int(min(32, max(1, size // 262_144)))


class Segment:
    """The mapped file, seen as tensors."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.header: dict[str, Any] = json.loads((folder / HEADER).read_text())
        self.layout = Layout.from_json(self.header["layout"])
        self.stripes: int = self.header["stripes"]
        self.control = Control(folder)
        with open(folder / CENTER, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        n = self.layout.size
        self.slots = {
            name: torch.from_numpy(np.frombuffer(self._map, np.float32, n, BYTES + i * _slot_bytes(n)))
            for i, name in enumerate(self.header["slots"])
        }
        edges = np.linspace(0, n, self.stripes + 1).astype(np.int64)
        # Stripes meet at cache lines, so that two writers never share one.
        edges[1:-1] = edges[1:-1] // 16 * 16
        self.bounds = [(int(a), int(b)) for a, b in itertools.pairwise(edges)]

    @staticmethod
    def create(
        folder: Path, method: str, layout: Layout, slots: dict[str, Tensor], saved: dict[str, Any] | None = None
    ) -> None:
        """Lay out the file and fill it; the header comes last, so that whoever sees it sees a whole segment.

        `saved` is a center to go on from: its "slots" and its "version".
        """
        if saved is not None:
            check_saved(saved, slots)
            slots = saved["slots"]
        n, names = layout.size, [*slots, "sum"]
        size = BYTES + len(names) * _slot_bytes(n)
        with open(folder / CENTER, "wb") as file:
            try:
                # Memory that is promised but not there would end a worker with a bus error in the middle of training.
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                raise SettingError(
                    f"no room for the center's {size / 1e6:.0f} MB in {folder} ({error.strerror}); "
                    "set EASGD_SHARED to a folder with more"
                ) from error
            for i, vector in enumerate(slots.values()):
                file.seek(BYTES + i * _slot_bytes(n))
                file.write(vector.to(torch.float32).contiguous().numpy().data)
            if saved is not None:
                # Between two exchanges the clocks of all stripes are the master's.
                file.seek(8 * STRIPE_VERSIONS)
                file.write(int(saved["version"]).to_bytes(8, sys.byteorder, signed=True) * STRIPES_MOST)
        header = {"method": method, "layout": layout.as_json(), "slots": names, "stripes": stripes_for(n)}
        scratch = folder / f"{HEADER}.tmp"
        scratch.write_text(json.dumps(header))
        os.replace(scratch, folder / HEADER)

    def check(self, method: str, layout: Layout) -> None:
        """Refuse a worker whose model or method is not the run's, and list the difference."""
        problems = layout.differences(self.layout)
        if method != self.header["method"]:
            problems.append(f"the method is {method} here, {self.header['method']} in the run")
        refuse_misfit(problems)


def refuse_misfit(problems: list[str]) -> None:
    """Refuse a worker that differs from its run, if there is anything to list."""
    if problems:
        more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
        raise SettingError(f"this worker does not fit the run: {'; '.join(problems[:5])}{more}; start it as the others")


def check_saved(saved: dict[str, Any], slots: dict[str, Tensor]) -> None:
    """Refuse a saved center of another method or model."""
    mine = {name: vector.numel() for name, vector in slots.items()}
    theirs = {name: vector.numel() for name, vector in saved["slots"].items()}
    if mine != theirs:
        raise SettingError(f"the saved center has {theirs}, this method and model need {mine}; resume with the same")


def _slot_bytes(n: int) -> int:
    return -(-4 * n // _PAGE) * _PAGE
