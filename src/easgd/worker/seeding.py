"""Gives every worker random numbers of its own.

A script that knows nothing of ranks seeds its generators with one number, and p copies of it would draw the same
batches: all but one of them would be worth nothing. So after `attach` the global generators of torch, numpy and
`random`, and those that the script has made for itself, go on from a seed that follows from what they were, the rank
and the incarnation. A script that fixed its seed stays reproducible; the first worker keeps the script's own stream.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import os
import pickle
import random
import sys
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

import numpy as np
import torch

KINDS = (np.random.Generator, np.random.RandomState, random.Random, torch.Generator)


def start_alike(run: str | None) -> None:
    """Let the workers of a run draw the same numbers from the global generators until they attach.

    So a script that sets no seed makes the same data, and splits it alike, on all of them and on one that is started
    again: else each would learn another task, or the center from every worker's validation set.
    """
    bits = os.urandom(8) if run is None else run.encode()
    torch.default_generator.manual_seed(_seed(bits, 0, 0, bits=63))
    np.random.seed(_seed(bits, 0, 0, bits=32))
    random.seed(_seed(bits, 0, 0, bits=63))


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


def own_seed(seed: int, rank: int, incarnation: int) -> int:
    """Return the worker's own seed in the place of one that all workers have; epochs may be added to it."""
    return _seed(str(seed).encode(), rank, incarnation, bits=48)


def _made_by_the_script() -> Iterator[Any]:
    """Yield the generators that exist beside the global ones, once each.

    They may be anywhere, as in the attributes of a data set or a trainer. The garbage collector knows those of numpy
    and `random`. It does not know torch's, but it knows what holds them; only the variables of the functions that are
    running are held by none of its objects. What was frozen (`gc.freeze`) before the script began is not looked at.
    """
    known = {id(np.random.mtrand._rand), id(random._inst), id(torch.default_generator)}
    objects = gc.get_objects()
    held = _of({torch.Generator, dict}, gc.get_referents(*objects))
    # A dictionary of nothing but generators and other plain things is not known to it either.
    plain = {id(thing): thing for thing in held if type(thing) is dict and not gc.is_tracked(thing)}
    kinds = {kind for kind in set(map(type, objects)) if issubclass(kind, KINDS)}
    for thing in _of(kinds | {torch.Generator}, [*objects, *held, *gc.get_referents(*plain.values()), *_variables()]):
        if id(thing) not in known and not isinstance(thing, random.SystemRandom):
            yield thing
        known.add(id(thing))


def _of(kinds: set[type], things: Sequence[Any]) -> list[Any]:
    """Return the things of some types among millions, without a line of Python for each.

    `type`, not `isinstance`: that would ask proxies for their class, and wake them.
    """
    return list(itertools.compress(things, map(kinds.__contains__, map(type, things))))


def _variables() -> list[Any]:
    """The variables of the functions that are running."""
    found: list[Any] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        found += frame.f_locals.values()
        frame = frame.f_back
    return found


def _seed(state: bytes, rank: int, incarnation: int, bits: int) -> int:
    digest = hashlib.blake2b(state + f"/{rank}/{incarnation}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> (64 - bits)
