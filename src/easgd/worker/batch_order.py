"""Lets a `DataLoader` give other batches on every worker, in a script that knows nothing of ranks.

A loader that shuffles by torch's global generator differs already (`easgd.worker.seeding`). Here are the two others:
one that shuffles by a generator of its own, which is reseeded, and one that does not shuffle, which begins at another
place and goes around, so that every worker still sees the entire set. Only loaders that are read while a model trains
are changed: an evaluation, in eval mode or without gradients, keeps its order.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, SequentialSampler

from easgd.worker import seeding
from easgd.worker.open_workers import OPEN_WORKERS
from easgd.worker.seeding import KINDS

if TYPE_CHECKING:
    from easgd.worker.worker import Worker

_read: weakref.WeakSet[DataLoader[Any]] = weakref.WeakSet()
_plain_iter = DataLoader.__iter__


def watch_loaders(worker: Worker) -> None:
    """Let the loaders of this process differ from those of the other workers for as long as `worker` is open."""
    worker.orders_batches = bool(worker.stream[0] or worker.context.incarnation)
    DataLoader.__iter__ = _iter  # type: ignore[method-assign]


def _iter(loader: DataLoader[Any]) -> Any:
    worker = _training()
    if worker is not None and loader not in _read:
        _read.add(loader)
        _differ(loader, worker)
    return _plain_iter(loader)


def _training() -> Worker | None:
    """Return a worker whose model is being trained just now, if its loaders are to differ."""
    workers = [worker for worker in OPEN_WORKERS if worker.orders_batches and worker.model.training]
    return workers[0] if workers and torch.is_grad_enabled() else None


def _differ(loader: DataLoader[Any], worker: Worker) -> None:
    holder: Any = loader.batch_sampler
    sampler: Any = getattr(holder, "sampler", None)
    # A data set that is made after `attach`, as a stream that draws its own samples, may have a generator too.
    held = [v for v in getattr(loader.dataset, "__dict__", {}).values() if isinstance(v, (torch.Generator, *KINDS))]
    generator = getattr(sampler, "generator", None)
    for one in {id(found): found for found in (generator, loader.generator, *held) if found is not None}.values():
        seeding.reseed_one(one, worker.stream[0], worker.context.incarnation)
    if type(seed := getattr(sampler, "initial_seed", None)) is int:
        # accelerate's sampler seeds its generator anew in every epoch, with this number and the epoch's.
        sampler.initial_seed = seeding.own_seed(seed, worker.stream[0], worker.context.incarnation)
    if generator is None and type(sampler) is SequentialSampler:
        holder.sampler = _Rotated(sampler)


class _Rotated:
    """The order of a sequential sampler; while a model trains, from this worker's place on and around."""

    def __init__(self, sampler: SequentialSampler) -> None:
        self.sampler = sampler

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[int]:
        size, worker = len(self.sampler), _training()
        # A script that has asked for its rank has its own way to tell the workers apart.
        place, streams = (0, 1) if worker is None or worker.rank_asked else worker.stream
        first = place * size // streams
        return ((first + k) % size for k in range(size))
