"""How far each worker has come at a shard, and what it was answered last: see `easgd.engines.ray.shard`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from easgd.compress import DeltaCodec
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
    delta: DeltaCodec | None = None
    seen: int = 0
    """The fragment's clock when this worker saw it last."""
    left: bool = False
    """Whether the worker is gone, so that no snapshot waits for it."""
    bound: float = 0.0
    """Of a refused message: how far away it may have been."""


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
                entry.answer, entry.delta, entry.left = None, None, True

    def reached(self, living: bool = False) -> Reached:
        """Return how far each worker has come, or each that is still there."""
        entries = self.entries.items()
        return {key: (entry.incarnation, entry.sequence) for key, entry in entries if not (living and entry.left)}
