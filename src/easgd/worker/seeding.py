"""Gives every worker random numbers of its own.

A script that knows nothing of ranks seeds its generators with one number, and p copies of it would draw the same
batches: all but one of them would be worth nothing. So after `attach` the global generators of torch, numpy and
`random` go on from a seed that follows from what they were, the rank and the incarnation. A script that fixed its seed
stays reproducible; the first worker keeps the script's own stream.
"""

from __future__ import annotations

import hashlib
import pickle
import random

import numpy as np
import torch


def reseed(rank: int, incarnation: int) -> None:
    """Let this worker's generators differ from those of the other ranks and of its own earlier incarnations."""
    if rank == 0 and incarnation == 0:
        return
    # The states are only hashed here; nothing is ever loaded from these bytes.
    torch.manual_seed(_seed(torch.get_rng_state().numpy().tobytes(), rank, incarnation, bits=63))
    np.random.seed(_seed(pickle.dumps(np.random.get_state()), rank, incarnation, bits=32))
    random.seed(_seed(pickle.dumps(random.getstate()), rank, incarnation, bits=63))


def _seed(state: bytes, rank: int, incarnation: int, bits: int) -> int:
    digest = hashlib.blake2b(state + f"/{rank}/{incarnation}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - bits)
