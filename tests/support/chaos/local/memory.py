"""Shared memory in which every access may be the last: words, and stripes that are changed a few elements at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from chaos.local.witness import LocalWitness
from easgd.center.state import CenterState
from easgd.kernels.fused import Vector

PART = 5
"""Elements that are changed at once."""


class SharedWords:
    """A memoryview of control words. Before each is read or written, another process may run first."""

    def __init__(self, words: memoryview[int], point: Callable[[], None]) -> None:
        self.words, self.point = words, point

    def __getitem__(self, at: Any) -> Any:
        self.point()
        found = self.words[at]
        return SharedWords(found, self.point) if isinstance(at, slice) else found

    def __setitem__(self, at: int, value: int) -> None:
        self.point()
        self.words[at] = value

    def __iter__(self) -> Iterator[int]:
        return iter(self.words)

    def __len__(self) -> int:
        return len(self.words)


class SharedState(CenterState):
    """A stripe of the center, as memory is: it is read, then written, and the writer may be killed in between.

    Attributes:
        stripe: its number.
        at: where it begins and ends.
    """

    witness: LocalWitness
    point: Callable[[], None]
    stripe: int
    at: tuple[int, int]

    def apply_array_(self, message: Vector, scale: float) -> float | None:
        self._begin(self.x)
        if self.applies_in_parts:
            self.apply_parts_(message, scale, PART, self._changed)
        else:
            super().apply_array_(message, scale)
        self.witness.done(self)
        if not self.method.is_elastic and not torch.equal(torch.from_numpy(message), self.x):
            self.witness.wrong(f"stripe {self.stripe}: the answer is not the center's value")
        return self.update_sqnorm

    def move_(self, x: Vector, at: int, scale: float, gain: float) -> float:
        self._begin(self.x)
        self._from, total = at, 0.0
        for k in range(0, x.size, PART):
            total += super().move_(x[k : k + PART], at + k, scale, gain)
            self._changed(at + min(k + PART, x.size))
        return total

    def tick(self) -> None:
        super().tick()
        self.witness.done(self)

    def add_to_round(self, d: Tensor, scale: float = 1.0) -> None:
        assert self._total is not None
        self._begin(self._total)
        super().add_to_round(d, scale)
        self.witness.brought(self, d)

    def end_round(self) -> None:
        self.witness.absorbs(self)
        self._begin(self.x)
        super().end_round()
        self.witness.absorbed(self)

    def _update(self, d: Tensor) -> None:
        """As a `CenterState`, a part at a time: what a method does is elementwise."""
        version, size = self._clock[0] - self._clock[1], d.numel()
        for k in range(0, size, PART):
            cut = slice(k, k + PART)
            self.method.update_({name: slot[cut] for name, slot in self.slots.items()}, d[cut], version)
            self._changed(min(k + PART, size))
        self._clock[0] += 1

    def _begin(self, vector: Tensor) -> None:
        """Read the vector; what others write until it is written back is lost, as where nobody holds a lock."""
        read = vector.clone()
        self.point()
        vector.copy_(read)
        self._before, self._from, self._version = self.x.clone(), 0, self.version
        self.witness.inside(self)

    def _changed(self, end: int) -> None:
        """The elements up to `end` are written: note by how much, before anything else can happen."""
        part = slice(self._from, end)
        self.witness.changed(self, part, self.x[part] - self._before[part])
        self._from = end
        self.point()
