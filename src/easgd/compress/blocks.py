"""Codes of 8, 4 and 2 bits with a float32 scale, or two, for each block: the scales of all blocks, then the codes."""

from __future__ import annotations

from abc import abstractmethod
from types import ModuleType
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from easgd.compress.codec import Codec

BLOCK = 1024


class BlockCodec(Codec):
    """A codec whose loops are `encode`, `encode_rest_`, `decode` and `decode_add_` of a module of kernels."""

    bits: ClassVar[int]
    scales: ClassVar[int] = 1

    @property
    @abstractmethod
    def kernels(self) -> ModuleType:
        """The loops. They are imported when they are used first: numba takes a second."""

    def bytes(self, n: int) -> int:
        return self._edge(n) + -(-n * self.bits // 8)

    def encode(self, vector: Tensor) -> Tensor:
        packed = torch.empty(self.bytes(vector.numel()), dtype=torch.uint8)
        self.kernels.encode(vector.contiguous().numpy(), *self._parts(packed, vector.numel()), BLOCK)
        return packed

    def encode_rest_(self, vector: Tensor) -> Tensor:
        packed = torch.empty(self.bytes(vector.numel()), dtype=torch.uint8)
        self.kernels.encode_rest_(vector.numpy(), *self._parts(packed, vector.numel()), BLOCK)
        return packed

    def decode(self, packed: Tensor, n: int) -> Tensor:
        out = torch.empty(n)
        self.kernels.decode(*self._parts(packed, n), out.numpy(), BLOCK)
        return out

    def decode_add_(self, packed: Tensor, to: Tensor) -> None:
        self.kernels.decode_add_(*self._parts(packed, to.numel()), to.numpy(), BLOCK)

    def _parts(self, packed: Tensor, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the scales and the codes, as views. The loops trust the lengths: they are checked here."""
        self.check(packed, n)
        raw, edge = packed.numpy(), self._edge(n)
        return raw[:edge].view(np.float32), raw[edge:].view(np.int8 if self.bits == 8 else np.uint8)

    def _edge(self, n: int) -> int:
        """Where the scales end."""
        return 4 * self.scales * -(-n // BLOCK)


class Int8(BlockCodec):
    """Each element rounded to the nearest multiple of its block's scale, max|x|/127."""

    name, bits = "int8", 8

    @property
    def kernels(self) -> ModuleType:
        from easgd.kernels import quantize

        return quantize


class Int4(BlockCodec):
    """Each element rounded to the nearest multiple of its block's scale, max|x|/7; two in a byte."""

    name, bits, coarse = "int4", 4, True

    @property
    def kernels(self) -> ModuleType:
        from easgd.kernels import quantize4

        return quantize4


class Int2(BlockCodec):
    """Each element plus or minus one of two levels of its block: the mean magnitude of small and of large elements."""

    name, bits, scales, coarse = "int2", 2, 2, True

    @property
    def kernels(self) -> ModuleType:
        from easgd.kernels import quantize2

        return quantize2
