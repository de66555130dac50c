"""Lets a `DataLoader` give other batches on every worker, in a script that knows nothing of ranks.

A loader that shuffles by torch's global generator differs already (`easgd.worker.seeding`). Here are the two others:
one that shuffles by a generator of its own, which is reseeded, and one that does not shuffle, which begins at another
place and goes around, so that every worker still sees the entire set. Only loaders that are read while a model trains
are changed: an evaluation, in eval mode or without gradients, keeps its order.

Frameworks begin to read before they attach a worker, or hand over the loader of the training: `Stream` stands for the
worker there.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import DataLoader, SequentialSampler

from easgd.worker import seeding
from easgd.worker.context import RunContext
from easgd.worker.open_workers import OPEN_WORKERS
from easgd.worker.seeding import KINDS

if TYPE_CHECKING:
    from easgd.worker.worker import Worker


@dataclass(frozen=True, eq=False)
class Stream:
    """The part of the data that is a worker's own, while a framework trains `model`."""

    context: RunContext
    model: nn.Module

    @property
    def stream(self) -> tuple[int, int]:
        return self.context.rank, self.context.workers

    @property
    def orders_batches(self) -> bool:
        return bool(self.context.rank or self.context.incarnation)

    @property
    def rank_asked(self) -> bool:
        """Whether the script reads EASGD_RANK: it has its own way to tell the workers apart.

        A worker notices who asks it for its rank; before a framework attaches one, the text of the script must do.
        """
        path = getattr(sys.modules.get("__main__"), "__file__", None)
        try:
            return path is not None and "EASGD_RANK" in Path(path).read_text(errors="replace")
        except OSError:
            return False

    def watch(self) -> None:
        """Let the loaders that are read while the model trains give this worker's batches, until `close`."""
        if self.orders_batches:
            _streams.add(self)
            DataLoader.__iter__ = _iter  # type: ignore[method-assign]

    def order(self, loader: Any) -> None:
        """Let the loader of the training give this worker's batches."""
        if self.orders_batches and isinstance(loader, DataLoader):
            _read.add(loader)
            _differ(loader, self, always=True)

    def close(self) -> None:
        _streams.discard(self)


_streams: set[Stream] = set()
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


def _training() -> Worker | Stream | None:
    """Return a worker whose model is being trained just now, if its loaders are to differ."""
    known: list[Worker | Stream] = [*OPEN_WORKERS, *_streams]
    workers = [worker for worker in known if worker.orders_batches and worker.model.training]
    return workers[0] if workers and torch.is_grad_enabled() else None


def _differ(loader: DataLoader[Any], worker: Worker | Stream, *, always: bool = False) -> None:
    holder: Any = loader.batch_sampler
    sampler: Any = getattr(holder, "sampler", None)
    # A data set that is made after `attach`, as a stream that draws its own samples, may have a generator too.
    held = [v for v in getattr(loader.dataset, "__dict__", {}).values() if isinstance(v, KINDS)]
    generator = getattr(sampler, "generator", None)
    for one in {id(found): found for found in (generator, loader.generator, *held) if found is not None}.values():
        seeding.reseed_one(one, worker.stream[0], worker.context.incarnation)
    if type(seed := getattr(sampler, "initial_seed", None)) is int:
        # accelerate's sampler seeds its generator anew in every epoch, with this number and the epoch's.
        sampler.initial_seed = seeding.own_seed(seed, worker.stream[0], worker.context.incarnation)
    if generator is None and type(sampler) is SequentialSampler:
        holder.sampler = _Rotated(sampler, worker if always else None)


class _Rotated:
    """The order of a sequential sampler; while a model trains, from this worker's place on and around.

    The sampler of an `owner` is read by its training alone.
    """

    def __init__(self, sampler: SequentialSampler, owner: Worker | Stream | None = None) -> None:
        self.sampler, self.owner = sampler, owner

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[int]:
        size, worker = len(self.sampler), self.owner or _training()
        # A script that has asked for its rank has its own way to tell the workers apart.
        place, streams = (0, 1) if worker is None or worker.rank_asked else worker.stream
        first = place * size // streams
        return ((first + k) % size for k in range(size))
