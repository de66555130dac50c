"""A linear regression with other data for each worker, and the synchronous method written out by hand."""

from __future__ import annotations

import torch
from torch import Tensor

SAMPLES, BATCH, ACCUMULATE, LR, PERIOD, EPOCHS = 24, 2, 2, 0.05, 2, 2
STEPS = EPOCHS * SAMPLES // (BATCH * ACCUMULATE)


def samples(rank: int) -> tuple[Tensor, Tensor]:
    """Return inputs [24, 3] and targets [24, 1]."""
    draw = torch.Generator().manual_seed(100 + rank)
    return torch.randn(SAMPLES, 3, generator=draw), torch.randn(SAMPLES, 1, generator=draw)


def by_hand(workers: int = 2, beta: float = 0.9) -> list[Tensor]:
    """Return the center's weight [3] after every step: x ← x − ηg − d, x̃ ← x̃ + Σd, d = α(x − x̃), α = β/p."""
    x, center, path = [torch.zeros(3) for _ in range(workers)], torch.zeros(3), []
    data = [samples(rank) for rank in range(workers)]
    for t in range(STEPS):
        d = [beta / workers * (xi - center) if t % PERIOD == 0 else torch.zeros(3) for xi in x]
        at = t * BATCH * ACCUMULATE % SAMPLES
        for i, (inputs, targets) in enumerate(data):
            a, y = inputs[at : at + BATCH * ACCUMULATE], targets[at : at + BATCH * ACCUMULATE, 0]
            gradient = 2 * a.T @ (a @ x[i] - y) / len(y)
            x[i] = x[i] - LR * gradient - d[i]
        center = center + sum(d)
        path.append(center)
    return path
