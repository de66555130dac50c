"""What the flat vector of a run is made of, and the refusal of a worker or a saved center that does not fit."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from easgd.dtensors import is_sharded, local, piece_of
from easgd.errors import SettingError

Piece = tuple[tuple[int, ...], tuple[int, ...]]
"""Of a tensor that is a part of a sharded one: the shape of the whole, and where the part begins in it."""


@dataclass(frozen=True)
class Layout:
    """What the flat vector is made of; equal on all workers of a run.

    `pieces` has an entry for each tensor, None for one that is whole; it is empty where all are.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    strides: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    pieces: tuple[Piece | None, ...] = ()

    @staticmethod
    def of(tensors: dict[str, Tensor]) -> Layout:
        """Describe named tensors in their order; of a sharded one, this rank's part."""
        parts = [local(t) for t in tensors.values()]
        return Layout(
            tuple(tensors),
            tuple(tuple(t.shape) for t in parts),
            tuple(tuple(t.stride()) for t in parts),
            tuple(str(t.dtype) for t in parts),
            tuple(map(piece_of, tensors.values())) if any(map(is_sharded, tensors.values())) else (),
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
        if not out and self.pieces != other.pieces:
            out.append("the tensors are sharded in another way")
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
        whole = {"names": self.names, "shapes": self.shapes, "strides": self.strides, "dtypes": self.dtypes}
        return {**whole, "pieces": self.pieces} if self.pieces else whole

    @staticmethod
    def from_json(data: dict[str, Any]) -> Layout:
        return Layout(
            tuple(data["names"]),
            tuple(tuple(s) for s in data["shapes"]),
            tuple(tuple(s) for s in data["strides"]),
            tuple(data["dtypes"]),
            tuple(None if p is None else (tuple(p[0]), tuple(p[1])) for p in data.get("pieces", ())),
        )


def assembled(parts: list[tuple[Layout, dict[str, Tensor]]]) -> dict[str, Tensor]:
    """Put the tensors of several centers together: parts of a sharded tensor at their place in the whole one."""
    out: dict[str, Tensor] = {}
    for layout, values in parts:
        for name, piece in zip(layout.names, layout.pieces or (None,) * len(layout.names), strict=True):
            if piece is None:
                out[name] = values[name]
                continue
            whole, offset = piece
            there = out.setdefault(name, values[name].new_zeros(whole))
            there[tuple(slice(o, o + n) for o, n in zip(offset, values[name].shape, strict=True))] = values[name]
    return out


def fragment_bounds(size: int, fragments: int) -> list[tuple[int, int]]:
    """Where the parts of a vector begin and end that are exchanged in turn; their sizes differ by one at most.

    >>> fragment_bounds(7, 3)
    [(0, 2), (2, 4), (4, 7)]
    """
    edges = [size * k // fragments for k in range(fragments + 1)]
    return list(itertools.pairwise(edges))


def fragment_cuts(start: int, stop: int, shards: Sequence[tuple[int, int]]) -> list[slice]:
    """Which elements of the fragment from `start` to `stop` each shard has; an empty slice where it has none.

    >>> fragment_cuts(2, 6, [(0, 4), (4, 8), (8, 9)])
    [slice(0, 2, None), slice(2, 4, None), slice(4, 4, None)]
    """
    edges = [(min(max(a, start), stop) - start, min(max(b, start), stop) - start) for a, b in shards]
    return [slice(a, b) for a, b in edges]


def saved_clocks(saved: dict[str, Any], fragments: int) -> list[list[int]]:
    """Return the clocks of a saved center's fragments: how many updates each had, and at which its average began."""
    clocks = saved.get("clocks")
    if clocks is None:  # of a center that was saved whole: all fragments have had their turns
        clocks = [[saved["version"] // fragments, saved.get("averaged_from", 0) // fragments]] * fragments
    if len(clocks) != fragments:
        raise SettingError(
            f"the saved center has {len(clocks)} fragments, this method {fragments}; resume with the same"
        )
    return [list(clock) for clock in clocks]


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
