"""The elements of largest magnitude, block by block: numba loops that run outside the interpreter lock.

Without the sign bit, float32 values are ordered like integers. The k-th largest of a block is found in three counts of
11, 10 and 10 bits (a radix selection), each over a block that lies in the cache; a fourth pass takes what is above it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from easgd.kernels.fused import Vector, _jit
from easgd.kernels.quantize import _INFINITE, _LEVELS, _MAGNITUDE, _NAN, _ONE, _SMALLEST, _ZERO

Codes = npt.NDArray[np.int8]
Places = npt.NDArray[np.uint16]
Bits = npt.NDArray[np.int32]


@_jit
def _bin(counts: Bits, most: int) -> tuple[int, int]:
    """The highest bin such that it and those above hold at least `most`; and how many of it are among the `most`."""
    k = counts.size - 1
    while counts[k] < most:
        most -= counts[k]
        k -= 1
    return k, most


@_jit
def _threshold(bits: Bits, kept: int, counts: Bits) -> tuple[int, int]:
    """Return the kept-th largest magnitude, as bits, and how many elements that are equal to it are kept."""
    counts[:] = 0
    for i in range(bits.size):
        counts[(bits[i] & _MAGNITUDE) >> 20] += 1
    prefix, left = _bin(counts, kept)
    for shift in (10, 0):
        counts[:] = 0
        for i in range(bits.size):
            magnitude = bits[i] & _MAGNITUDE
            if magnitude >> (shift + 10) == prefix:
                counts[(magnitude >> shift) & 1023] += 1
        lower, left = _bin(counts, left)
        prefix = (prefix << 10) | lower
    return prefix, left


@_jit
def _scale(block: Vector, places: Places) -> np.float32:
    top = np.empty(1, np.int32)
    top[0] = 0
    bits = block.view(np.int32)
    for j in range(places.size):
        top[0] = max(top[0], bits[places[j]] & _MAGNITUDE)
    if top[0] >= _INFINITE:
        return _NAN
    largest = top.view(np.float32)[0]
    return largest / _LEVELS if largest > _SMALLEST else _ZERO


@_jit
def _select(block: Vector, places: Places, counts: Bits) -> None:
    """Write the places of the largest magnitudes, ascending."""
    bits = block.view(np.int32)
    bound, equal = _threshold(bits, places.size, counts)
    j = 0
    for i in range(block.size):
        magnitude = bits[i] & _MAGNITUDE
        if magnitude >= bound and (magnitude > bound or equal > 0):
            equal -= magnitude == bound
            places[j] = i
            j += 1


@_jit
def _kept(size: int, share: int) -> int:
    return max(1, size // share)


@_jit
def encode(
    x: Vector, scales: Vector, places: Places, codes: Codes, block: int, share: int, rest: bool
) -> None:  # fmt: skip
    """Write the scale, the places and the codes of each block; with `rest`, x ← x − scale·code at these places."""
    counts, at = np.empty(2048, np.int32), 0
    for k in range(scales.size):
        part = x[k * block : min((k + 1) * block, x.size)]
        end = at + _kept(part.size, share)
        _select(part, places[at:end], counts)
        scale = _scale(part, places[at:end])
        inverse = _ONE / scale if scale > _ZERO else _ZERO
        for j in range(at, end):
            value = part[places[j]]
            codes[j] = np.int8(np.rint(value * inverse)) if scale > _ZERO else np.int8(0)
            if rest:
                part[places[j]] = value - scale * np.float32(codes[j])
        scales[k], at = scale, end


@_jit
def ascending(places: Places, size: int, block: int, share: int) -> bool:
    """Whether the places of every block ascend and lie in it."""
    at, start = 0, 0
    while start < size:
        length = min(block, size - start)
        before, end = np.int64(-1), at + _kept(length, share)
        for j in range(at, end):
            if places[j] <= before or places[j] >= length:
                return False
            before = np.int64(places[j])
        at, start = end, start + block
    return True


@_jit
def decode_add_(
    scales: Vector, places: Places, codes: Codes, out: Vector, block: int, share: int
) -> None:  # fmt: skip
    """out += scale·code at the places, which are known to be sound."""
    at = 0
    for k in range(scales.size):
        part = out[k * block : min((k + 1) * block, out.size)]
        end = at + _kept(part.size, share)
        for j in range(at, end):
            part[places[j]] += scales[k] * np.float32(codes[j])
        at = end
