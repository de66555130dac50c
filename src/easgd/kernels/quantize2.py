"""2 bits with two levels per block: four codes in a byte, the first in the lowest bits.

    code = sign of x, and whether |x| is above the block's root mean square
    levels = the mean |x| of the elements below and above it,   x ≈ ±level

The means are the best levels for these codes: the squared error is Σx² − Σ level², always below Σx², so that what is
carried from message to message shrinks; a single large element is sent as it is. For normally distributed elements the
error is 0.1177 Σx², where the best four levels have 0.1175. Bit 0 of a code says large, bit 1 negative. A block with a
value that is not finite gets the levels NaN.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from easgd.kernels.fused import Vector, _jit, _jit_sum
from easgd.kernels.quantize import _INFINITE, _NAN, _ZERO, _largest

Bytes = npt.NDArray[np.uint8]
_LAST = np.uint8(3)


@_jit_sum
def _squares(block: Vector) -> float:
    total = 0.0
    for i in range(block.size):
        total += float(block[i]) * float(block[i])
    return total


@_jit_sum
def _fit(block: Vector, bound: np.float32, levels: Vector) -> None:
    """Write the mean magnitude of the elements up to the bound, and of those above it."""
    whole, above, count = 0.0, 0.0, 0.0
    for i in range(block.size):
        magnitude = abs(float(block[i]))
        large = 1.0 if magnitude > bound else 0.0
        whole += magnitude
        above += magnitude * large
        count += large
    levels[0] = np.float32((whole - above) / max(1.0, block.size - count))
    levels[1] = np.float32(above / max(1.0, count))


@_jit
def _code(x: np.float32, bound: np.float32) -> np.uint8:
    return np.uint8(abs(x) > bound) | (np.uint8(x < _ZERO) << np.uint8(1))


@_jit
def _encode_block(block: Vector, codes: Bytes, levels: Vector) -> None:
    if _largest(block.view(np.int32)) >= _INFINITE:
        codes[:] = np.uint8(0)
        levels[:] = _NAN
        return
    bound = np.float32(np.sqrt(_squares(block) / block.size))
    _fit(block, bound, levels)
    for j in range(block.size // 4):
        i = 4 * j
        first, second = _code(block[i], bound), _code(block[i + 1], bound)
        third, fourth = _code(block[i + 2], bound), _code(block[i + 3], bound)
        codes[j] = first | (second << np.uint8(2)) | (third << np.uint8(4)) | (fourth << np.uint8(6))
    if block.size % 4:
        codes[block.size // 4] = np.uint8(0)
        for i in range(block.size // 4 * 4, block.size):
            codes[i // 4] |= _code(block[i], bound) << np.uint8(2 * (i % 4))


@_jit
def _add(block: Vector, codes: Bytes, levels: Vector, sign: int) -> None:
    values = np.empty(4, np.float32)
    values[0], values[1] = sign * levels[0], sign * levels[1]
    values[2], values[3] = -values[0], -values[1]
    for j in range(block.size // 4):
        byte = codes[j]
        for t in range(4):
            block[4 * j + t] += values[(byte >> np.uint8(2 * t)) & _LAST]
    for i in range(block.size // 4 * 4, block.size):
        block[i] += values[(codes[i // 4] >> np.uint8(2 * (i % 4))) & _LAST]


@_jit
def encode(x: Vector, levels: Vector, codes: Bytes, block: int) -> None:
    """Write the two levels of each block of x to `levels` and the codes to `codes`; 4 divides `block`."""
    for k in range(levels.size // 2):
        a, b = k * block, min((k + 1) * block, x.size)
        _encode_block(x[a:b], codes[a // 4 : (b + 3) // 4], levels[2 * k : 2 * k + 2])


@_jit
def encode_rest_(x: Vector, levels: Vector, codes: Bytes, block: int) -> None:
    """Encode x and leave the rounding error in it: x ← x ∓ level."""
    for k in range(levels.size // 2):
        a, b = k * block, min((k + 1) * block, x.size)
        own, pair = codes[a // 4 : (b + 3) // 4], levels[2 * k : 2 * k + 2]
        _encode_block(x[a:b], own, pair)
        _add(x[a:b], own, pair, -1)


@_jit
def decode_add_(levels: Vector, codes: Bytes, out: Vector, block: int) -> None:
    """out += ±level."""
    for k in range(levels.size // 2):
        a, b = k * block, min((k + 1) * block, out.size)
        _add(out[a:b], codes[a // 4 : (b + 3) // 4], levels[2 * k : 2 * k + 2], 1)


@_jit
def decode(levels: Vector, codes: Bytes, out: Vector, block: int) -> None:
    """out ← ±level."""
    for k in range(levels.size // 2):
        a, b = k * block, min((k + 1) * block, out.size)
        out[a:b] = _ZERO
        _add(out[a:b], codes[a // 4 : (b + 3) // 4], levels[2 * k : 2 * k + 2], 1)
