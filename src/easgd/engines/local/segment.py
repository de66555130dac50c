"""The shared memory of a run: one mapped file with control words and the center's vectors, and a header beside it.

    control   see `easgd.engines.local.control`
    slots     x̃, and beside it the method's `velocity`, `average` and, for synchronous rounds, `sum`; float32 each

The vectors are cut into the method's fragments, and these into stripes, each a `CenterState` with a clock and a lock of
its own. The header has the method, the layout of the vector (names, shapes, strides) and each fragment's stripes. The
first worker to arrive writes both, under a lock; every other one checks that it brought the same model and method.
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

from easgd.center.layout import Layout, check_saved, fragment_bounds, refuse_misfit, saved_clocks
from easgd.center.state import CenterState
from easgd.engines.local.control import BYTES, CENTER, CLOCK_WORDS, HEADER, ROLLS, STRIPE_CLOCKS, STRIPES_MOST, Control
from easgd.errors import SettingError, refuse
from easgd.files import write_json
from easgd.methods import Method

_PAGE = mmap.PAGESIZE


def stripes_for(size: int, fragments: int = 1) -> list[int]:
    """How many stripes each fragment gets: locks cost more than they free in a small one, 32 suffice in a large one."""
    if fragments > STRIPES_MOST:
        why = f"a center in shared memory has at most {STRIPES_MOST}"
        raise refuse("fragments", fragments, why, f"write fragments={STRIPES_MOST} or fewer")
    most = min(32, STRIPES_MOST // fragments)
    return [int(min(most, max(1, (b - a) // 262_144))) for a, b in fragment_bounds(size, fragments)]


class Segment:
    """The mapped file, seen as tensors."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.header: dict[str, Any] = json.loads((folder / HEADER).read_text())
        self.layout = Layout.from_json(self.header["layout"])
        self.control = Control(folder)
        with open(folder / CENTER, "r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        n = self.layout.size
        self.slots = {
            name: torch.from_numpy(np.frombuffer(self._map, np.float32, n, BYTES + i * _slot_bytes(n)))
            for i, name in enumerate(self.header["slots"])
        }
        self._total = self.slots.pop("sum")
        self.bounds: list[tuple[int, int]] = []
        """where each stripe begins and ends"""
        self.stripes: list[range] = []
        """which stripes each fragment has"""
        counts: list[int] = self.header["stripes"]
        self.fragments = fragment_bounds(n, len(counts))
        for (start, stop), count in zip(self.fragments, counts, strict=True):
            edges = np.linspace(start, stop, count + 1).astype(np.int64)
            # Stripes meet at cache lines, so that two writers never share one.
            edges[1:-1] = edges[1:-1] // 16 * 16
            self.stripes.append(range(len(self.bounds), len(self.bounds) + count))
            self.bounds += [(int(a), int(b)) for a, b in itertools.pairwise(edges)]

    def clock(self, fragment: int) -> list[int]:
        """A fragment's clock, that of its first stripe: its updates, and the one at which its average began."""
        at = STRIPE_CLOCKS + CLOCK_WORDS * self.stripes[fragment].start
        return list(self.control.words[at : at + CLOCK_WORDS])

    @property
    def version(self) -> int:
        """The master's clock: the updates of all fragments together."""
        return sum(self.clock(f)[0] for f in range(len(self.fragments)))

    @staticmethod
    def create(
        folder: Path, method: Method, layout: Layout, slots: dict[str, Tensor], saved: dict[str, Any] | None = None,
        history: Path | None = None,
    ) -> None:  # fmt: skip
        """Lay out the file and fill it; the header comes last, so that whoever sees it sees a whole segment.

        `saved` is a center to go on from: its "slots", and its "clocks" or its "version". `history` is where its
        changes are written down.
        """
        stripes = stripes_for(layout.size, method.fragments)
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
                # Between two exchanges the clocks of all stripes of a fragment are the same.
                file.seek(8 * STRIPE_CLOCKS)
                for clock, count in zip(saved_clocks(saved, len(stripes)), stripes, strict=True):
                    file.write(b"".join(int(word).to_bytes(8, sys.byteorder, signed=True) for word in clock) * count)
        header = {"method": repr(method), "layout": layout.as_json(), "slots": names, "stripes": stripes}
        if history is not None:
            header["history"] = str(history)
            (folder / ROLLS).unlink(missing_ok=True)  # of a first worker that was killed before it wrote the header
            (folder / ROLLS).symlink_to(history.absolute() / ROLLS)
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
