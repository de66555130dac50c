"""A worker's end of a compressed wire, on the virtual clock: what is rounded on the way there and back.

The same codec and the same two memories as on a cluster (`easgd.compress`): a message goes through `ErrorFeedback`; an
elastic answer is the rounded d̂ that the center itself has added; an answer x̃ goes through `DeltaCodec`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from easgd.center.state import CenterState
from easgd.center.whole import Center
from easgd.compress import Codec, DeltaCodec, ErrorFeedback


class CompressedLink:
    """Carries one worker's exchanges through a codec."""

    def __init__(self, codec: Codec, size: int) -> None:
        self.codec, self.size = codec, size
        self.feedback = ErrorFeedback(codec, size)
        self.following: DeltaCodec | None = None

    def exchange(self, center: CenterState, message: Tensor | None, scale: float, rank: int) -> Tensor | None:
        """`CenterState.exchange`, with both directions rounded; None: refused."""
        if message is not None:
            # What is refused leaves no trace in the error feedback.
            if not center.accepts(message, scale, rank):
                return None
            if center.method.answers_with == "difference":
                return center.exchange(self.there(message), scale, through=self.back)
            center.push(self.there(message), scale)
        if self.following is None:  # the two ends have no common value yet: it goes over in full
            self.following = DeltaCodec(self.codec, center.x)
        else:
            self.following.encode(center.x)
        return self.following.value.clone()

    def there(self, message: Tensor) -> Tensor:
        """What arrives of a message."""
        return self.codec.decode(self.feedback.encode(message), self.size)

    def back(self, d: Tensor) -> Tensor:
        """What arrives of an elastic answer; the center adds the same."""
        return self.codec.decode(self.codec.encode(d), self.size)

    def state_dict(self) -> dict[str, Any]:
        """Return what both directions remember of their rounding."""
        following = None if self.following is None else self.following.value
        return {"rest": self.feedback.rest, "following": following}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.feedback.rest = state["rest"].clone()
        value = state["following"]
        self.following = None if value is None else DeltaCodec(self.codec, value)


def links_of(compression: str | None, center: Center) -> list[CompressedLink] | None:
    """New wires for a worker, one for each fragment of the center; None where nothing is compressed."""
    if compression is None:
        return None
    if center.x.dtype != torch.float32:
        from easgd.errors import refuse

        raise refuse(
            "compression", compression, f"it packs float32, the vector is {center.x.dtype}", "use a float32 x0"
        )
    return [CompressedLink(Codec.named(compression), b - a) for a, b in center.bounds]
