"""A worker's end of a compressed wire, on the virtual clock: what is rounded on the way there and back.

The same codec and the same memories as on a cluster (`easgd.compress`): a message goes through `ErrorFeedback`, or,
where the codec is too coarse for a position, through `DeltaCodec`; an elastic answer is the rounded d̂ that the center
itself has added; an answer x̃ goes through `DeltaCodec`.
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
        self.position: DeltaCodec | None = None
        self.sent_in_full = 0
        """How many of the last exchange's two vectors went over in float32."""

    def exchange(self, center: CenterState, message: Tensor | None, scale: float, rank: int) -> Tensor | None:
        """`CenterState.exchange`, with both directions rounded; None: refused."""
        self.sent_in_full = 0
        if message is not None:
            # What is refused leaves no trace in the error feedback.
            if not center.accepts(message, scale, rank):
                self.position = None
                return None
            if center.method.is_elastic:
                return self._elastic(center, message, scale)
            center.push(self.there(message), scale)
        return self.follow(center.x)

    def follow(self, x: Tensor) -> Tensor:
        """What arrives of an answer x̃: its change since the last one, the first in full."""
        self.sent_in_full = 0
        if self.following is None:  # the two ends have no common value yet
            self.following = DeltaCodec(self.codec, x)
            self.sent_in_full = 1
        else:
            self.following.encode(x)
        return self.following.value.clone()

    def _elastic(self, center: CenterState, x: Tensor, scale: float) -> Tensor | None:
        """Exchange a position. A coarse codec sends its change, which both ends expect to be −d of the last answer."""
        if not self.codec.coarse:
            return center.exchange(self.there(x), scale, through=self.back)
        if self.position is None:
            self.position = DeltaCodec(self.codec, x)
            self.sent_in_full += 1
        else:
            self.position.encode(x)
        d = center.exchange(self.position.value, scale, through=self.back)
        if d is None:
            self.position = None
        else:
            self.position.expect_(d)
        return d

    def there(self, message: Tensor) -> Tensor:
        """What arrives of a message."""
        return self.codec.decode(self.feedback.encode(message), self.size)

    def back(self, d: Tensor) -> Tensor:
        """What arrives of an elastic answer; the center adds the same."""
        return self.codec.decode(self.codec.encode(d), self.size)

    def state_dict(self) -> dict[str, Any]:
        """Return what both directions remember of their rounding."""
        values = {"following": self.following, "position": self.position}
        return {"rest": self.feedback.rest, **{name: None if v is None else v.value for name, v in values.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` gave."""
        self.feedback.rest = state["rest"].clone()
        self.following, self.position = (
            None if (value := state.get(name)) is None else DeltaCodec(self.codec, value)
            for name in ("following", "position")
        )


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
