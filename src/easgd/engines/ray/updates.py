"""One worker's message meets its stretch of the center; the ledger's entry keeps the answer for who asks again."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from easgd.center.state import CenterState
from easgd.compress import Float32
from easgd.engines.ray.ledger import LedgerEntry
from easgd.engines.ray.messages import Kind, Reply, Request, Status
from easgd.engines.ray.pipeline import CHUNK, PipelinedExchange

Stored = Callable[[LedgerEntry, float, int], tuple[Reply, Tensor | None]]


def update(request: Request, entry: LedgerEntry, center: CenterState, message: Tensor) -> None:
    """Apply one message; a refused one leaves the center as it was, and the entry says why."""
    plain, answers_d = isinstance(entry.codec, Float32), center.method.is_elastic
    vector = entry.unpack(message, center.x.numel(), answers_d, request.in_full)
    rounded = None if plain or not answers_d else entry.rounded
    scale = request.scale * center.method.weight(center.version - entry.seen)
    answer = center.exchange(vector, scale, rounded, request.rank)
    entry.seen = center.version
    if answer is None:
        refuse(entry, center)
        return
    entry.update_sqnorm = center.update_sqnorm or 0.0
    if request.kind == Kind.PUSH:
        entry.answer = None
    elif plain:
        entry.answer = answer.view(torch.uint8)
    elif not answers_d:
        entry.answer_center(center.x)
    elif entry.position is not None:
        entry.position.expect_(answer)


def update_in_parts(
    request: Request, entry: LedgerEntry, center: CenterState, message: Tensor, pipelined: PipelinedExchange,
    stored: Stored,
) -> None:  # fmt: skip
    """Apply a large message in float32, whose answer is sent while it is computed."""
    vector = entry.codec.decode(message, center.x.numel())
    scale = request.scale * center.method.weight(center.version - entry.seen)
    distance = pipelined.distance()
    distance = center.distance(vector) if distance is None else distance
    if center.accepts(vector, scale, request.rank, distance):
        # Σd² of the answer, which is on its way before the last d is known.
        entry.update_sqnorm = (scale * distance) ** 2 if center.method.is_elastic else 0.0
        entry.answer = message
        reply, _ = stored(entry, pipelined.waited, request.fragment)
        pipelined.begin(reply._replace(version=center.version + 1), message)
        center.apply_parts_(vector.numpy(), scale, CHUNK // 4, lambda end: pipelined.ready(4 * end))
    else:
        refuse(entry, center)
    entry.seen = center.version


def refuse(entry: LedgerEntry, center: CenterState) -> None:
    """Note that the center refused a worker's message, and why."""
    why = center.refusal
    entry.status, entry.update_sqnorm, entry.bound = Status.REFUSED, why.distance**2, why.bound
    entry.position = None  # it may not be finite; the worker sends its next one in full
