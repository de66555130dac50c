"""How far each worker has come at a shard, and what it was answered last: see `easgd.engines.ray.shard`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from easgd.compress import Codec, DeltaCodec, Float32
from easgd.engines.ray.messages import Status

Reached = dict[tuple[int, int], tuple[int, int]]
"""(worker, fragment) -> (incarnation, sequence): how far each has come"""


@dataclass
class LedgerEntry:
    """What the ledger has of one worker and fragment."""

    incarnation: int
    sequence: int = -1
    status: Status = Status.DONE
    answer: Tensor | None = None
    update_sqnorm: float = 0.0
    slowest: float = 0.0
    """Of the round that was answered last; 0 outside rounds."""
    codec: Codec = field(default_factory=Float32)
    """What packs this worker's messages and answers."""
    delta: DeltaCodec | None = None
    """The value x̃ that this worker has, where answers are its changes."""
    position: DeltaCodec | None = None
    """The worker's own position, where its messages are its changes."""
    seen: int = 0
    """The fragment's clock when this worker saw it last."""
    left: bool = False
    """Whether the worker is gone, so that no snapshot waits for it."""
    bound: float = 0.0
    """Of a refused message: how far away it may have been."""

    def use(self, codec: Codec) -> None:
        """Pack and unpack with this codec from now on; what was kept for another one is given up."""
        if codec.name != self.codec.name:
            self.codec, self.delta, self.position = codec, None, None

    def lacks_position(self, elastic: bool) -> bool:
        """Whether a message must come in full, because it would be the change of a position that is not known."""
        return elastic and self.codec.coarse and self.position is None

    def unpack(self, message: Tensor, n: int, elastic: bool, in_full: bool) -> Tensor:
        """Return the vector of a message. Of a position that is kept here it is the kept one: it must not be changed.

        Raises ValueError for bytes that no worker would send.
        """
        if not (elastic and self.codec.coarse):
            return self.codec.decode(message, n)
        if in_full:
            self.position = DeltaCodec(self.codec, Float32().decode(message, n))
            return self.position.value
        assert self.position is not None
        return self.position.decode(message)

    def rounded(self, d: Tensor) -> Tensor:
        """Keep the bytes of an elastic answer d; return what the worker will subtract, and the center must add."""
        self.answer = self.codec.encode(d)
        return self.codec.decode(self.answer, d.numel())

    def answer_center(self, x: Tensor) -> None:
        """Answer x̃, or its change since this worker's last answer."""
        if isinstance(self.codec, Float32) or not x.numel():
            self.answer = x.clone().view(torch.uint8)
        elif self.delta is None:
            self.status = Status.PLAIN
            self.delta = DeltaCodec(self.codec, x)
            self.answer = x.clone().view(torch.uint8)
        else:
            self.answer = self.delta.encode(x)


class Ledger:
    """The entries of all workers.

    Args:
        reached: how far each worker had come, of a saved shard.
        versions: the fragments' clocks then.

    Attributes:
        entries: by worker and fragment.
        incarnations: the last one of each worker that was heard of.
        paces: what each worker brings where the period sets itself.
    """

    def __init__(
        self, reached: Mapping[tuple[int, int], tuple[int, int]] | None = None, versions: Sequence[int] = ()
    ) -> None:
        self.entries = {key: LedgerEntry(*at, seen=versions[key[1]]) for key, at in (reached or {}).items()}
        self.incarnations = {rank: entry.incarnation for (rank, _), entry in self.entries.items()}
        self.paces: dict[int, float] = {}

    def entry(self, rank: int, incarnation: int, fragment: int, seen: int) -> LedgerEntry | None:
        """Return the entry of a worker, a new one if need be; None if a later incarnation was heard of."""
        if self.incarnations.get(rank, -1) > incarnation:
            return None
        if self.incarnations.get(rank, -1) < incarnation:
            self.incarnations[rank] = incarnation
            self.entries = {key: entry for key, entry in self.entries.items() if key[0] != rank}
        return self.entries.setdefault((rank, fragment), LedgerEntry(incarnation, seen=seen))

    def leave(self, rank: int) -> None:
        """Give up the answers to a worker that is gone. How far it came stays: a late message must not count anew."""
        self.paces.pop(rank, None)
        for key, entry in self.entries.items():
            if key[0] == rank:
                entry.answer, entry.delta, entry.position, entry.left = None, None, None, True

    def reached(self, living: bool = False) -> Reached:
        """Return how far each worker has come, or each that is still there."""
        entries = self.entries.items()
        return {key: (entry.incarnation, entry.sequence) for key, entry in entries if not (living and entry.left)}
