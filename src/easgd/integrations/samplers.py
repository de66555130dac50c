"""Let the random samplers of one script differ between workers: a seed of their own would give all the same batches."""

from __future__ import annotations

from typing import Any

import torch

# accelerate adds the epoch to the seed: neighbouring seeds would give one worker another's order an epoch later.
STRIDE = 1_000_003


def reorder(loader: Any, rank: int) -> None:
    """Give a sampler that has a seed or a generator worker `rank`'s; others follow torch's global generator.

    Worker 0 keeps the script's own order.
    """
    sampler: Any = getattr(getattr(loader, "batch_sampler", None), "sampler", None) or getattr(loader, "sampler", None)
    if isinstance(getattr(sampler, "initial_seed", None), int):  # accelerate's SeedableRandomSampler
        sampler.initial_seed = _own(sampler.initial_seed, rank)
    elif isinstance(generator := getattr(sampler, "generator", None), torch.Generator) and rank:
        generator.manual_seed(_own(generator.initial_seed(), rank))


def _own(seed: int, rank: int) -> int:
    return (seed + STRIDE * rank) % 2**63
