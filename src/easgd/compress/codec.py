"""What every codec does, and the two that need no loops of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from easgd.errors import unknown

NAMES = ("bf16", "int8", "int4", "int2", "topk")
_codecs: dict[str, type[Codec]] = {}


class Codec(ABC):
    """Packs a float32 vector into bytes and unpacks it. A codec has no state, so all callers can share one.

    >>> codec = Codec.named("int8")
    >>> packed = codec.encode(torch.tensor([1.0, -0.5, 0.25]))
    >>> packed.numel(), codec.decode(packed, 3)
    (7, tensor([ 1.0000, -0.5039,  0.2520]))
    """

    name: ClassVar[str]
    coarse: ClassVar[bool] = False
    """Whether a position must be sent as its change, because rounding it would hide how far it is from the center."""

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls):
            _codecs[cls.name] = cls

    @staticmethod
    def named(name: str | None) -> Codec:
        """Return the codec of one of the `NAMES`; for None or "float32" the one that does not compress."""
        if (name or "float32") not in _codecs:
            raise unknown("compression", str(name), NAMES)
        return _codecs[name or "float32"]()

    @abstractmethod
    def bytes(self, n: int) -> int:
        """Return the number of bytes that n elements take when packed."""

    @abstractmethod
    def encode(self, vector: Tensor) -> Tensor:
        """Pack a float32 vector into a uint8 vector (which may share its memory)."""

    @abstractmethod
    def decode(self, packed: Tensor, n: int) -> Tensor:
        """Unpack n elements into a float32 vector (which may share the packed memory).

        Raises ValueError for bytes that are not a packed vector of n elements, whoever made them.
        """

    def decode_add_(self, packed: Tensor, to: Tensor) -> None:
        """Add the unpacked vector to `to`; `to` is unchanged if the bytes are refused."""
        to += self.decode(packed, to.numel())

    def encode_rest_(self, vector: Tensor) -> Tensor:
        """Pack a vector and leave the rounding error in it: vector ← vector − decode(packed)."""
        packed = self.encode(vector)
        vector -= self.decode(packed, vector.numel())
        return packed

    def check(self, packed: Tensor, n: int) -> None:
        """Refuse bytes that are not as many as n elements take."""
        if packed.numel() != self.bytes(n):
            raise ValueError(f"{packed.numel()} bytes: {n} elements in {self.name} are {self.bytes(n)}")


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
