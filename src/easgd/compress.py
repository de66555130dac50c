"""Fewer bytes on the wire: a vector as bfloat16, or as int8 with a scale per block, and what keeps that harmless.

    float32   4 bytes an element: nothing is lost
    bf16      2 bytes: 8 bits of mantissa, the range of float32
    int8      1 byte and a float32 scale per 1024 elements: x ≈ scale·code, scale = max|x|/127 in the block

A packed vector is one uint8 tensor, so that its bytes can be counted, sent and stored without knowing what they are.
What is not finite stays so: its block decodes to NaN, and whoever receives it refuses it.

Errors must not pile up. Two small memories see to that, one for each kind of message:

    `ErrorFeedback`  the sender keeps what rounding took and adds it to the next vector: m̂ = Q(m + e),
                e ← m + e − m̂. The sum of all that was sent is the sum of all that was meant, up to one rounding.
    `DeltaCodec` both ends keep the value r that the receiver has; what is sent is the change Q(x − r), and both add it.
                The error shrinks with the change, and what was rounded away is part of the next change.

How the methods use them. A worker's message goes through `ErrorFeedback`. An elastic answer d needs no memory: the
center adds the rounded d̂ = Q(α(x̂ − x̃)) and answers the same d̂, so Σxⁱ + x̃ stays what it was, and what was rounded away
is still in the spring. An answer x̃ (DOWNPOUR, ADMM) goes through `DeltaCodec`: one more vector per worker at the
center, and rounding never enters the center, because the worker's change is counted from the value it really has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from easgd.errors import unknown

BLOCK = 1024
NAMES = ("bf16", "int8")


class Codec(ABC):
    """Packs a float32 vector into bytes and back. It keeps no state: one codec serves everybody."""

    name: ClassVar[str]

    @staticmethod
    def named(name: str | None) -> Codec:
        """Return the codec "bf16" or "int8"; None, or "float32", is the plain one."""
        codecs: dict[str | None, type[Codec]] = {None: Float32, "float32": Float32, "bf16": BFloat16, "int8": Int8}
        if name not in codecs:
            raise unknown("compression", str(name), NAMES)
        return codecs[name]()

    @abstractmethod
    def bytes(self, n: int) -> int:
        """How many bytes n elements take when packed."""

    @abstractmethod
    def encode(self, vector: Tensor) -> Tensor:
        """Pack a vector; float32 in, uint8 out."""

    @abstractmethod
    def decode(self, packed: Tensor, n: int) -> Tensor:
        """Unpack n elements into a new float32 vector (plain float32 shares the packed memory)."""

    def decode_add_(self, packed: Tensor, to: Tensor) -> None:
        """to += what is packed."""
        to += self.decode(packed, to.numel())

    def encode_rest_(self, vector: Tensor) -> Tensor:
        """Pack a vector and leave in its place what rounding took: vector ← vector − decode(packed)."""
        packed = self.encode(vector)
        vector -= self.decode(packed, vector.numel())
        return packed


class Float32(Codec):
    """The vector's own bytes."""

    name = "float32"

    def bytes(self, n: int) -> int:
        """Four each."""
        return 4 * n

    def encode(self, vector: Tensor) -> Tensor:
        """A view where it can be one."""
        return vector.contiguous().view(torch.uint8)

    def decode(self, packed: Tensor, n: int) -> Tensor:
        """The same memory again."""
        return packed.view(torch.float32)


class BFloat16(Codec):
    """The upper half of each float32, rounded to nearest."""

    name = "bf16"

    def bytes(self, n: int) -> int:
        """Two each."""
        return 2 * n

    def encode(self, vector: Tensor) -> Tensor:
        """Round to nearest even, as torch does."""
        return vector.to(torch.bfloat16).view(torch.uint8)

    def decode(self, packed: Tensor, n: int) -> Tensor:
        """Exact: every bfloat16 is a float32."""
        return packed.view(torch.bfloat16).to(torch.float32)


class Int8(Codec):
    """Scales of all blocks first, then the codes."""

    name = "int8"

    def bytes(self, n: int) -> int:
        """One each, and four a block."""
        return 4 * _blocks(n) + n

    def encode(self, vector: Tensor) -> Tensor:
        """Round to the nearest multiple of the block's scale."""
        from easgd.kernels import quantize

        packed, scales, codes = self._empty(vector.numel())
        quantize.encode(vector.contiguous().numpy(), scales, codes, BLOCK)
        return packed

    def encode_rest_(self, vector: Tensor) -> Tensor:
        """Both in one pass."""
        from easgd.kernels import quantize

        packed, scales, codes = self._empty(vector.numel())
        quantize.encode_rest_(vector.numpy(), scales, codes, BLOCK)
        return packed

    def decode(self, packed: Tensor, n: int) -> Tensor:
        """scale·code."""
        from easgd.kernels import quantize

        out = torch.empty(n)
        quantize.decode(*_parts(packed, n), out.numpy(), BLOCK)
        return out

    def decode_add_(self, packed: Tensor, to: Tensor) -> None:
        """In one pass."""
        from easgd.kernels import quantize

        quantize.decode_add_(*_parts(packed, to.numel()), to.numpy(), BLOCK)

    def _empty(self, n: int) -> tuple[Tensor, np.ndarray, np.ndarray]:
        packed = torch.empty(self.bytes(n), dtype=torch.uint8)
        return packed, *_parts(packed, n)


def _blocks(n: int) -> int:
    return -(-n // BLOCK)


def _parts(packed: Tensor, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The scales and the codes of a packed int8 vector."""
    raw, edge = packed.numpy(), 4 * _blocks(n)
    return raw[:edge].view(np.float32), raw[edge:].view(np.int8)


class ErrorFeedback:
    """A sender's memory of what rounding took from its vectors."""

    def __init__(self, codec: Codec, size: int) -> None:
        self.codec = codec
        self.rest = torch.zeros(size)

    def encode(self, vector: Tensor) -> Tensor:
        """m̂ = Q(m + e); e ← m + e − m̂. A vector that is not finite must not come here: it would stay in e."""
        self.rest += vector
        return self.codec.encode_rest_(self.rest)


class DeltaCodec:
    """The value r that a receiver has, as both ends know it."""

    def __init__(self, codec: Codec, value: Tensor) -> None:
        self.codec = codec
        self.value = value.clone()

    def encode(self, x: Tensor) -> Tensor:
        """The sender's side: Q(x − r); r ← r + Q(x − r)."""
        packed = self.codec.encode(x - self.value)
        self.codec.decode_add_(packed, self.value)
        return packed

    def decode(self, packed: Tensor) -> Tensor:
        """The receiver's side: r ← r + what came. The value is this memory itself: copy what must last."""
        self.codec.decode_add_(packed, self.value)
        return self.value
