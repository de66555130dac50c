"""Digests of vectors that add up: that of a vector is the sum of those of its parts, wherever it is cut."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from torch import Tensor


@lru_cache(maxsize=64)
def weights(start: int, stop: int) -> npt.NDArray[np.uint64]:
    """Odd numbers that look random, one for each element of the vector (splitmix64)."""
    with np.errstate(over="ignore"):
        z = (np.arange(start, stop, dtype=np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (z ^ (z >> np.uint64(31))) | np.uint64(1)


def terms(vector: Tensor, start: int) -> npt.NDArray[np.uint64]:
    """What each element adds to the digest of a stretch that begins at `start`: its bits times its weight."""
    array = vector.detach().contiguous().numpy()
    bits = array.view(np.uint64 if array.itemsize == 8 else np.uint32).astype(np.uint64)
    with np.errstate(over="ignore"):
        product: npt.NDArray[np.uint64] = bits * weights(start, start + bits.size)
    return product


def digest(vector: Tensor, start: int) -> int:
    """A sum modulo 2⁶⁴ over bits and places: one changed element always changes it, and parts add up to the whole."""
    with np.errstate(over="ignore"):
        return int(terms(vector, start).sum(dtype=np.uint64))
