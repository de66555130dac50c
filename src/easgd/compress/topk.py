"""The largest elements only: of every 65536, the 1638 of largest magnitude, with their places."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from easgd.compress.codec import Codec

BLOCK = 1 << 16
"""Elements whose places fit into two bytes."""
SHARE = 40
"""One of so many elements is sent, three bytes each: 160/3 = 53.3 times fewer than float32."""


class TopK(Codec):
    """Of each block a fortieth of the elements, at least one: all scales, then all places, ascending, then all codes.

    A block's codes are int8 multiples of its scale, the largest magnitude / 127. What is not sent is 0; of equal
    magnitudes the first are sent.
    """

    name, coarse = "topk", True

    def bytes(self, n: int) -> int:
        return 4 * -(-n // BLOCK) + 3 * _kept(n)

    def encode(self, vector: Tensor) -> Tensor:
        return self._encode(vector.contiguous(), rest=False)

    def encode_rest_(self, vector: Tensor) -> Tensor:
        return self._encode(vector, rest=True)

    def decode(self, packed: Tensor, n: int) -> Tensor:
        out = torch.zeros(n)
        self.decode_add_(packed, out)
        return out

    def decode_add_(self, packed: Tensor, to: Tensor) -> None:
        from easgd.kernels import topk

        scales, places, codes = self._parts(packed, to.numel())
        if not topk.ascending(places, to.numel(), BLOCK, SHARE):
            raise ValueError("the places of a topk vector are not ascending within their blocks")
        topk.decode_add_(scales, places, codes, to.numpy(), BLOCK, SHARE)

    def _encode(self, vector: Tensor, rest: bool) -> Tensor:
        from easgd.kernels import topk

        packed = torch.empty(self.bytes(vector.numel()), dtype=torch.uint8)
        topk.encode(vector.numpy(), *self._parts(packed, vector.numel()), BLOCK, SHARE, rest)
        return packed

    def _parts(self, packed: Tensor, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return scales, places and codes, as views. The loops trust the lengths: they are checked here."""
        self.check(packed, n)
        raw, first, second = packed.numpy(), 4 * -(-n // BLOCK), 4 * -(-n // BLOCK) + 2 * _kept(n)
        return raw[:first].view(np.float32), raw[first:second].view(np.uint16), raw[second:].view(np.int8)


def _kept(n: int) -> int:
    """How many of n elements are sent."""
    last = n % BLOCK
    return n // BLOCK * (BLOCK // SHARE) + (max(1, last // SHARE) if last else 0)
