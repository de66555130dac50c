"""Compressed messages: a vector as bfloat16, or as int8 with a scale per block, without accumulating errors.

    float32   4 bytes per element, exact
    bf16      2 bytes: 8 bits of mantissa, the range of float32
    int8      1 byte and a float32 scale per 1024 elements: x ≈ scale·code, scale = max|x|/127 in the block

A packed vector is one uint8 tensor, whatever the codec. A value that is not finite makes its block (for bf16, itself)
decode to a value that is not finite, so the receiver can refuse it.

Two wrappers keep rounding errors from accumulating, one for each kind of message:

    `ErrorFeedback`  The sender adds the rounding error e of one message to the next: m̂ = Q(m + e), e ← m + e − m̂.
                     The sum of all messages sent equals the sum of those intended, up to one rounding.
    `DeltaCodec`     Both ends keep the receiver's value r; the message is the change Q(x − r), which both add to r.
                     The error shrinks with the change, and it is part of the next change.

A worker's message goes through `ErrorFeedback`. An elastic answer d needs neither: the center adds the rounded
d̂ = Q(α(x̂ − x̃)) and answers the same d̂, so Σxⁱ + x̃ is conserved, and the next difference contains the rounding error. An
answer x̃ (DOWNPOUR, ADMM) goes through `DeltaCodec`, which costs one more vector per worker at the center. Its rounding
never reaches the center, because the worker sends its change relative to the value that it received.
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
    """Packs a float32 vector into bytes and unpacks it. A codec has no state, so all callers can share one.

    >>> codec = Codec.named("int8")
    >>> packed = codec.encode(torch.tensor([1.0, -0.5, 0.25]))
    >>> packed.numel(), codec.decode(packed, 3)
    (7, tensor([ 1.0000, -0.5039,  0.2520]))
    """

    name: ClassVar[str]

    @staticmethod
    def named(name: str | None) -> Codec:
        """Return the codec "bf16" or "int8"; for None or "float32" the one that does not compress."""
        codecs: dict[str | None, type[Codec]] = {None: Float32, "float32": Float32, "bf16": BFloat16, "int8": Int8}
        if name not in codecs:
            raise unknown("compression", str(name), NAMES)
        return codecs[name]()

    @abstractmethod
    def bytes(self, n: int) -> int:
        """Return the number of bytes that n elements take when packed."""

    def check(self, packed: Tensor, n: int) -> None:
        """Refuse bytes that are not n packed elements: the loops that unpack them look at no bounds."""
        if packed.numel() != self.bytes(n):
            raise ValueError(f"{packed.numel()} bytes are not {n} elements as {self.name}, which take {self.bytes(n)}")

    @abstractmethod
    def encode(self, vector: Tensor) -> Tensor:
        """Pack a float32 vector into a uint8 vector (which may share its memory)."""

    @abstractmethod
    def decode(self, packed: Tensor, n: int) -> Tensor:
        """Unpack n elements into a float32 vector (which may share the packed memory); see `check`."""

    def decode_add_(self, packed: Tensor, to: Tensor) -> None:
        """Add the unpacked vector to `to`."""
        to += self.decode(packed, to.numel())

    def encode_rest_(self, vector: Tensor) -> Tensor:
        """Pack a vector and leave the rounding error in it: vector ← vector − decode(packed)."""
        packed = self.encode(vector)
        vector -= self.decode(packed, vector.numel())
        return packed


class Float32(Codec):
    """The vector's own bytes; encode and decode are views of the same memory where possible."""

    name = "float32"

    def bytes(self, n: int) -> int:
        return 4 * n

    def encode(self, vector: Tensor) -> Tensor:
        return vector.contiguous().view(torch.uint8)

    def decode(self, packed: Tensor, n: int) -> Tensor:
        self.check(packed, n)
        return packed.view(torch.float32)


class BFloat16(Codec):
    """The upper half of each float32, rounded to nearest even. Decoding is exact."""

    name = "bf16"

    def bytes(self, n: int) -> int:
        return 2 * n

    def encode(self, vector: Tensor) -> Tensor:
        return vector.to(torch.bfloat16).view(torch.uint8)

    def decode(self, packed: Tensor, n: int) -> Tensor:
        self.check(packed, n)
        return packed.view(torch.bfloat16).to(torch.float32)


class Int8(Codec):
    """The scales of all blocks, then the codes, each rounded to the nearest multiple of its block's scale."""

    name = "int8"

    def bytes(self, n: int) -> int:
        return 4 * _blocks(n) + n

    def encode(self, vector: Tensor) -> Tensor:
        from easgd.kernels import quantize

        packed, scales, codes = self._empty(vector.numel())
        quantize.encode(vector.contiguous().numpy(), scales, codes, BLOCK)
        return packed

    def encode_rest_(self, vector: Tensor) -> Tensor:
        from easgd.kernels import quantize

        packed, scales, codes = self._empty(vector.numel())
        quantize.encode_rest_(vector.numpy(), scales, codes, BLOCK)
        return packed

    def decode(self, packed: Tensor, n: int) -> Tensor:
        from easgd.kernels import quantize

        self.check(packed, n)
        out = torch.empty(n)
        quantize.decode(*_parts(packed, n), out.numpy(), BLOCK)
        return out

    def decode_add_(self, packed: Tensor, to: Tensor) -> None:
        from easgd.kernels import quantize

        self.check(packed, to.numel())
        quantize.decode_add_(*_parts(packed, to.numel()), to.numpy(), BLOCK)

    def _empty(self, n: int) -> tuple[Tensor, np.ndarray, np.ndarray]:
        packed = torch.empty(self.bytes(n), dtype=torch.uint8)
        return packed, *_parts(packed, n)


def _blocks(n: int) -> int:
    return -(-n // BLOCK)


def _parts(packed: Tensor, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the scales and the codes of a packed int8 vector, as views."""
    raw, edge = packed.numpy(), 4 * _blocks(n)
    return raw[:edge].view(np.float32), raw[edge:].view(np.int8)


class ErrorFeedback:
    """A sender's side: carries the rounding error of each vector into the next."""

    def __init__(self, codec: Codec, size: int) -> None:
        self.codec = codec
        self.rest = torch.zeros(size)

    def encode(self, vector: Tensor) -> Tensor:
        """Return m̂ = Q(m + e) and set e ← m + e − m̂. The vector must be finite: e would never become finite again."""
        self.rest += vector
        return self.codec.encode_rest_(self.rest)


class DeltaCodec:
    """The receiver's value r, kept at both ends, which send only its changes."""

    def __init__(self, codec: Codec, value: Tensor) -> None:
        self.codec = codec
        self.value = value.clone()

    def encode(self, x: Tensor) -> Tensor:
        """At the sender: return Q(x − r) and set r ← r + Q(x − r)."""
        packed = self.codec.encode(x - self.value)
        self.codec.decode_add_(packed, self.value)
        return packed

    def decode(self, packed: Tensor) -> Tensor:
        """At the receiver: add the change to r and return r itself, which the next call changes."""
        self.codec.decode_add_(packed, self.value)
        return self.value
