"""The shared memory of a run: one mapped file with control words and the center's vectors, and a header beside it.

    control   see `easgd.engines.local.control`
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
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from easgd.center.layout import Layout, check_saved, refuse_misfit
from easgd.center.state import CenterState
from easgd.engines.local.control import BYTES, CENTER, CLOCK_WORDS, HEADER, STRIPE_CLOCKS, STRIPES_MOST, Control
from easgd.errors import SettingError
from easgd.files import write_json
from easgd.methods import Method

_PAGE = mmap.PAGESIZE


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
        self._total = self.slots.pop("sum")
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
                clock = (saved["version"], saved.get("averaged_from", 0))
                words = b"".join(int(word).to_bytes(8, sys.byteorder, signed=True) for word in clock)
                file.seek(8 * STRIPE_CLOCKS)
                file.write(words * STRIPES_MOST)
        header = {"method": method, "layout": layout.as_json(), "slots": names, "stripes": stripes_for(n)}
        write_json(folder / HEADER, header)

    def states(self, method: Method) -> list[CenterState]:
        """Return the stripes as centers of their own, over this memory and the run's own clocks."""
        words = self.control.words
        return [
            CenterState(
                method,
                {name: slot[a:b] for name, slot in self.slots.items()},
                clock=words[STRIPE_CLOCKS + CLOCK_WORDS * s : STRIPE_CLOCKS + CLOCK_WORDS * (s + 1)],
                total=self._total[a:b],
            )
            for s, (a, b) in enumerate(self.bounds)
        ]

    def check(self, method: str, layout: Layout) -> None:
        """Refuse a worker whose model or method is not the run's, and list the difference."""
        problems = layout.differences(self.layout)
        if method != self.header["method"]:
            problems.append(f"the method is {method} here, {self.header['method']} in the run")
        refuse_misfit(problems)


def _slot_bytes(n: int) -> int:
    return -(-4 * n // _PAGE) * _PAGE
