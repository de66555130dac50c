"""Gives every worker random numbers of its own.

A script that knows nothing of ranks seeds its generators with one number, and p copies of it would draw the same
batches: all but one of them would be worth nothing. So after `attach` the global generators of torch, numpy and
`random`, and those that the script has made for itself, go on from a seed that follows from what they were, the rank
and the incarnation. A script that fixed its seed stays reproducible; the first worker keeps the script's own stream.
"""

from __future__ import annotations

import gc
import hashlib
import pickle
import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

KINDS = (np.random.Generator, np.random.RandomState, random.Random)


def reseed(rank: int, incarnation: int) -> None:
    """Let this worker's generators differ from those of the other ranks and of its own earlier incarnations."""
    if rank == 0 and incarnation == 0:
        return
    for generator in _made_by_the_script():
        reseed_one(generator, rank, incarnation)
    # The states are only hashed here; nothing is ever loaded from these bytes.
    torch.manual_seed(_seed(torch.get_rng_state().numpy().tobytes(), rank, incarnation, bits=63))
    np.random.seed(_seed(pickle.dumps(np.random.get_state()), rank, incarnation, bits=32))
    random.seed(_seed(pickle.dumps(random.getstate()), rank, incarnation, bits=63))


def reseed_one(generator: Any, rank: int, incarnation: int) -> None:
    """Let one generator go on differently on every worker."""
    if isinstance(generator, torch.Generator):
        generator.manual_seed(_seed(generator.get_state().numpy().tobytes(), rank, incarnation, bits=63))
    elif isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        seed = _seed(pickle.dumps(bits.state), rank, incarnation, bits=63)
        bits.state = type(bits)(seed).state
    elif isinstance(generator, np.random.RandomState):
        generator.seed(_seed(pickle.dumps(generator.get_state()), rank, incarnation, bits=32))
    else:
        generator.seed(_seed(pickle.dumps(generator.getstate()), rank, incarnation, bits=63))


def _made_by_the_script() -> Iterator[Any]:
    """Yield the generators that exist beside the global ones.

    Those of numpy and `random` may be anywhere, as in a data set's attributes: the garbage collector knows them all.
    It does not know torch's; those are looked for among the variables of the functions that are running, and where a
    `DataLoader` has one, when it is read (`easgd.worker.batch_order`).
    """
    known = {id(np.random.mtrand._rand), id(random._inst)}
    for thing in gc.get_objects():
        kind = type(thing)  # `isinstance` would ask proxies for their class, and wake them
        if issubclass(kind, KINDS) and not issubclass(kind, random.SystemRandom) and id(thing) not in known:
            yield thing
    found: dict[int, torch.Generator] = {id(torch.default_generator): torch.default_generator}
    frame = sys._getframe(1)
    while frame is not None:
        for value in [*frame.f_locals.values(), *(frame.f_globals.values() if frame.f_back is None else ())]:
            if isinstance(value, torch.Generator) and id(value) not in found:
                found[id(value)] = value
                yield value
        frame = frame.f_back  # type: ignore[assignment]


def _seed(state: bytes, rank: int, incarnation: int, bits: int) -> int:
    digest = hashlib.blake2b(state + f"/{rank}/{incarnation}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - bits)
