"""int8 with one scale per block, in one pass over memory: numba loops that run outside the interpreter lock.

    scale = max|x| / 127,   code = x / scale, rounded to the nearest integer,   x ≈ scale·code

The largest magnitude is found on the bits: without the sign bit, float32 values are ordered like integers, and infinity
and NaN are above all finite ones. A block with a value that is not finite gets the scale NaN and decodes to NaN.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from easgd.kernels.fused import Vector, _jit

Codes = npt.NDArray[np.int8]
_MAGNITUDE = np.int32(0x7FFFFFFF)
_INFINITE = np.int32(0x7F800000)
_LEVELS = np.float32(127)
_ZERO = np.float32(0)
_ONE = np.float32(1)
_NAN = np.float32(np.nan)
# Below this 127/max would overflow; such a block is encoded as zeros.
_SMALLEST = np.float32(1e-35)


@_jit
def _largest(bits: npt.NDArray[np.int32]) -> np.int32:
    top = np.int32(0)
    for i in range(bits.size):
        top = max(top, bits[i] & _MAGNITUDE)
    return top


@_jit
def _scale(block: Vector, levels: np.float32) -> np.float32:
    top = np.empty(1, np.int32)
    top[0] = _largest(block.view(np.int32))
    if top[0] >= _INFINITE:
        return _NAN
    largest = top.view(np.float32)[0]
    return largest / levels if largest > _SMALLEST else _ZERO


@_jit
def _round(block: Vector, codes: Codes, inverse: np.float32) -> None:
    for i in range(block.size):
        codes[i] = np.int8(np.rint(block[i] * inverse))


@_jit
def _subtract(block: Vector, codes: Codes, scale: np.float32) -> None:
    for i in range(block.size):
        block[i] -= scale * np.float32(codes[i])


@_jit
def _encode_block(block: Vector, codes: Codes) -> np.float32:
    scale = _scale(block, _LEVELS)
    _round(block, codes, _ONE / scale if scale > _ZERO else _ZERO)
    return scale


@_jit
def encode(x: Vector, scales: Vector, codes: Codes, block: int) -> None:
    """Write the scale of each block of x to `scales` and the rounded elements to `codes`."""
    for k in range(scales.size):
        a, b = k * block, min((k + 1) * block, x.size)
        scales[k] = _encode_block(x[a:b], codes[a:b])


@_jit
def encode_rest_(x: Vector, scales: Vector, codes: Codes, block: int) -> None:
    """Encode x and leave the rounding error in it: x ← x − scale·code."""
    for k in range(scales.size):
        a, b = k * block, min((k + 1) * block, x.size)
        scales[k] = _encode_block(x[a:b], codes[a:b])
        _subtract(x[a:b], codes[a:b], scales[k])


@_jit
def decode(scales: Vector, codes: Codes, out: Vector, block: int) -> None:
    """out ← scale·code."""
    for k in range(scales.size):
        scale = scales[k]
        for i in range(k * block, min((k + 1) * block, out.size)):
            out[i] = scale * np.float32(codes[i])


@_jit
def decode_add_(scales: Vector, codes: Codes, out: Vector, block: int) -> None:
    """out += scale·code."""
    for k in range(scales.size):
        scale = scales[k]
        for i in range(k * block, min((k + 1) * block, out.size)):
            out[i] += scale * np.float32(codes[i])
