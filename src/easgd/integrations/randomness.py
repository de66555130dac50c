"""Let the workers of one script draw different batches: with one seed, all of them would train on the same ones."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

# Frameworks add the epoch to the seed: neighbouring seeds would give one worker another's order an epoch later.
STRIDE = 1_000_003


def seed_of(seed: int, rank: int) -> int:
    """Return worker `rank`'s own seed; worker 0 keeps the script's."""
    return (seed + STRIDE * rank) % 2**63


def reseed(rank: int) -> None:
    """Move the global generators of Python, NumPy and torch to worker `rank`'s own seeds."""
    if rank:
        random.seed(random.getrandbits(63) + rank)
        np.random.seed((int(np.random.randint(2**31)) + rank) % 2**32)
        torch.manual_seed(seed_of(torch.initial_seed(), rank))


def reorder(loader: Any, rank: int) -> None:
    """Give a random sampler that has a seed or a generator of its own worker `rank`'s; others follow `reseed`."""
    if not rank:
        return
    sampler: Any = getattr(getattr(loader, "batch_sampler", None), "sampler", None) or getattr(loader, "sampler", None)
    if isinstance(getattr(sampler, "initial_seed", None), int):  # accelerate's SeedableRandomSampler
        sampler.initial_seed = seed_of(sampler.initial_seed, rank)
    elif isinstance(generator := getattr(sampler, "generator", None), torch.Generator):
        generator.manual_seed(seed_of(generator.initial_seed(), rank))
