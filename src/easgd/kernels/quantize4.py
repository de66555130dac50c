"""4 bits with one scale per block, in one pass over memory: two codes in a byte, the first in the lower half.

    scale = max|x| / 7,   code = x / scale, rounded to the nearest integer,   x ≈ scale·code

A code from −7 to 7 is stored as code + 8. The scale is found as for 8 bits (`easgd.kernels.quantize`).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from easgd.kernels.fused import Vector, _jit
from easgd.kernels.quantize import _ONE, _ZERO, _scale

Bytes = npt.NDArray[np.uint8]
_LEVELS = np.float32(7)
_OFFSET = np.float32(8)
_LOW = np.uint8(15)
_HALF = np.uint8(4)


@_jit
def _round(block: Vector, codes: Bytes, inverse: np.float32) -> None:
    for j in range(block.size // 2):
        low = np.uint8(np.rint(block[2 * j] * inverse) + _OFFSET)
        high = np.uint8(np.rint(block[2 * j + 1] * inverse) + _OFFSET)
        codes[j] = low | (high << _HALF)
    if block.size % 2:
        codes[block.size // 2] = np.uint8(np.rint(block[block.size - 1] * inverse) + _OFFSET)


@_jit
def _add(block: Vector, codes: Bytes, scale: np.float32) -> None:
    for j in range(block.size // 2):
        block[2 * j] += scale * (np.float32(codes[j] & _LOW) - _OFFSET)
        block[2 * j + 1] += scale * (np.float32(codes[j] >> _HALF) - _OFFSET)
    if block.size % 2:
        block[block.size - 1] += scale * (np.float32(codes[block.size // 2] & _LOW) - _OFFSET)


@_jit
def _encode_block(block: Vector, codes: Bytes) -> np.float32:
    scale = _scale(block, _LEVELS)
    _round(block, codes, _ONE / scale if scale > _ZERO else _ZERO)
    return scale


@_jit
def encode(x: Vector, scales: Vector, codes: Bytes, block: int) -> None:
    """Write the scale of each block of x to `scales` and the rounded elements to `codes`; `block` is even."""
    for k in range(scales.size):
        a, b = k * block, min((k + 1) * block, x.size)
        scales[k] = _encode_block(x[a:b], codes[a // 2 : (b + 1) // 2])


@_jit
def encode_rest_(x: Vector, scales: Vector, codes: Bytes, block: int) -> None:
    """Encode x and leave the rounding error in it: x ← x − scale·code."""
    for k in range(scales.size):
        a, b = k * block, min((k + 1) * block, x.size)
        own = codes[a // 2 : (b + 1) // 2]
        scales[k] = _encode_block(x[a:b], own)
        _add(x[a:b], own, -scales[k])


@_jit
def decode_add_(scales: Vector, codes: Bytes, out: Vector, block: int) -> None:
    """out += scale·code."""
    for k in range(scales.size):
        a, b = k * block, min((k + 1) * block, out.size)
        _add(out[a:b], codes[a // 2 : (b + 1) // 2], scales[k])


@_jit
def decode(scales: Vector, codes: Bytes, out: Vector, block: int) -> None:
    """out ← scale·code."""
    for k in range(scales.size):
        a, b = k * block, min((k + 1) * block, out.size)
        out[a:b] = _ZERO
        _add(out[a:b], codes[a // 2 : (b + 1) // 2], scales[k])
