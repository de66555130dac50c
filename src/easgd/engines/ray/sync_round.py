"""A synchronous round at a shard: every d from the same x̃, one update with their sum (equations 3 and 4)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from easgd.center.state import CenterState
from easgd.engines.ray.ledger import Ledger, LedgerEntry
from easgd.engines.ray.messages import Request, Status
from easgd.engines.ray.updates import refuse


class Arrival(NamedTuple):
    """A worker that has come to the round."""

    fragment: int
    sequence: int
    change: Tensor | None
    """None if it has no part of the fragment here, or was refused."""
    packed: Tensor | None
    """The change as bytes, where that is the answer."""


class SyncRound:
    """The workers that have come to the current round, by rank. The caller has the shard's lock."""

    def __init__(self) -> None:
        self.arrivals: dict[int, Arrival] = {}

    def add(self, request: Request, entry: LedgerEntry, center: CenterState, message: Tensor | None) -> None:
        """Take a worker in, with the change that its message proposes."""
        n, vector, packed = center.x.numel(), None, None
        answers_d = center.method.is_elastic
        if message is not None:
            vector = entry.unpack(message, n, answers_d, request.in_full)
        d = center.propose(vector, request.scale, request.rank)
        d = None if d is None else d.clone()  # it may be the message itself, whose memory is used again
        if d is not None and answers_d:
            packed = entry.codec.encode(d)
            d = entry.codec.decode(packed, n)  # as in `LedgerEntry.rounded`
            if entry.position is not None:
                entry.position.expect_(d)
        entry.status = Status.DONE
        if message is not None and d is None:
            refuse(entry, center)
        self.arrivals[request.rank] = Arrival(request.fragment, request.sequence, d, packed)

    def end(self, parts: Sequence[CenterState], ledger: Ledger, sent_by: Callable[[int, int, int], None]) -> None:
        """Update the center once, answer everybody, and begin the next round."""
        arrivals = dict(sorted(self.arrivals.items()))
        for rank, (f, sequence, d, _) in arrivals.items():  # in the order of the ranks
            if d is not None:
                sent_by(rank, ledger.entries[rank, f].incarnation, sequence)
                parts[f].add_to_round(d)
        for f in sorted({f for f, _, d, _ in arrivals.values() if d is not None}):
            parts[f].end_round()
        slowest = max(ledger.paces.get(rank, 0.0) for rank in arrivals)
        for rank, arrival in arrivals.items():
            entry = ledger.entries[rank, arrival.fragment]
            entry.slowest = slowest
            _answer(entry, arrival, parts[arrival.fragment])
        self.arrivals.clear()


def _answer(entry: LedgerEntry, arrival: Arrival, center: CenterState) -> None:
    _, entry.sequence, own, packed = arrival
    entry.answer = None
    if entry.status == Status.REFUSED:
        return
    entry.update_sqnorm = 0.0
    if own is not None and center.method.is_elastic:
        entry.answer, entry.update_sqnorm = packed, float(torch.dot(own, own))
    else:
        entry.status = Status.DONE
        entry.answer_center(center.x)
