"""A worker's side of compression: what it sends to each shard in fewer bytes, and what it makes of the answers.

`LedgerEntry` is the shard's side. Both keep the same values, each for one fragment's part on one shard.
"""

from __future__ import annotations

import torch
from torch import Tensor

from easgd.compress import Codec, DeltaCodec, ErrorFeedback, Float32
from easgd.engines.ray.messages import Reply, Status
from easgd.methods import Method

At = tuple[int, int]
"""(fragment, shard)"""


class Packing:
    """Packs the parts of messages and unpacks the parts of answers of one worker."""

    def __init__(self, codec: Codec, method: Method) -> None:
        self.codec, self.elastic = codec, method.is_elastic
        self.plain = isinstance(codec, Float32)
        self.feedback: dict[At, ErrorFeedback] = {}
        self.positions: dict[At, DeltaCodec] = {}
        """This worker's position as the shards know it, where its messages are changes of it."""
        self.centers: dict[At, DeltaCodec] = {}
        """x̃ as the shards know that this worker has it, where answers are changes of it."""

    def pack(self, part: Tensor, at: At) -> tuple[Tensor, bool]:
        """Return the bytes of a part of a message, and whether they are in float32 whatever the codec."""
        if self.plain:
            return self.codec.encode(part), False
        if self.elastic and self.codec.coarse:
            if at not in self.positions:
                return self.in_full(part, at), True
            return self.positions[at].encode(part), False
        if at not in self.feedback:
            self.feedback[at] = ErrorFeedback(self.codec, part.numel())
        return self.feedback[at].encode(part), False

    def in_full(self, part: Tensor, at: At) -> Tensor:
        """Return a part in float32, from which on both ends take changes."""
        self.positions[at] = DeltaCodec(self.codec, part)
        return Float32().encode(part)

    def unpack(self, at: At, reply: Reply, packed: Tensor, out: Tensor, difference: bool) -> None:
        """Write the answer of a shard, a difference or x̃, to `out`. Uncompressed ones lie there already."""
        if reply.status == Status.LOST:
            out.zero_()  # a difference that nobody knows any more; an answer x̃ is asked for again
            self.positions.pop(at, None)
        elif reply.status == Status.PLAIN:
            out.copy_(packed.view(torch.float32))
            self.centers[at] = DeltaCodec(self.codec, out)
        elif not self.plain and out.numel():
            if not difference:
                out.copy_(self.centers[at].decode(packed))
                return
            out.copy_(self.codec.decode(packed, out.numel()))
            if at in self.positions:
                self.positions[at].expect_(out)

    def forget_positions(self) -> None:
        """Send the next messages in full: this worker was refused, and may go on from somewhere else."""
        self.positions.clear()

    def room(self, n: int) -> int:
        """Bytes that an answer of n elements may take, in whole cache lines."""
        return -(-max(4 * n, self.codec.bytes(n)) // 64) * 64
