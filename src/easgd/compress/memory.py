"""What the two ends of a link remember, so that rounding errors do not accumulate."""

from __future__ import annotations

import torch
from torch import Tensor

from easgd.compress.codec import Codec


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

    def expect_(self, d: Tensor) -> None:
        """At both ends: the sender's value is about to become x − d, so r ← r − d."""
        self.value -= d
