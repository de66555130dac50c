"""Give each worker its own seeded order of the user's own `DataLoader`.

The paper assumes that "each worker can sample the entire dataset" (section 2): the data are not split, only the order
differs. So no part of the data is lost when a worker dies.
"""

from __future__ import annotations

import copy
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils import data

from easgd.data.seeds import SHARDING
from easgd.errors import refuse


def shard(loader: data.DataLoader[Any], rank: int, workers: int, seed: int = 0) -> ShardedLoader | ShardedIterable:
    """Return a loader over the same data in an order that belongs to worker `rank`; each iteration is a new epoch.

    Batch size, `drop_last`, collate function, loader processes, pinning and the kind of random sampler are kept. The
    order of a stream (`IterableDataset`) cannot be changed: one worker gets the stream as it is, several are refused.

    >>> loader = data.DataLoader(data.TensorDataset(torch.arange(4)), batch_size=2)
    >>> mine = shard(loader, rank=0, workers=2)
    >>> sorted(int(i) for batch in mine for i in batch[0])
    [0, 1, 2, 3]
    """
    if not 0 <= rank < workers:
        raise refuse("rank", rank, f"must be 0..{workers - 1} for {workers} workers", "count workers from 0")
    if isinstance(loader.dataset, data.IterableDataset):
        if workers > 1:
            remedy = "let the dataset pick its part by the worker's rank, and iterate the loader itself"
            raise refuse(
                "dataset", type(loader.dataset).__name__, f"a stream would be the same for {workers} workers", remedy
            )
        return ShardedIterable(loader)
    return ShardedLoader(loader, rank, seed)


class _Resumable(ABC):
    """Count epochs and the batches taken from them."""

    def __init__(self) -> None:
        self._at = (-1, 0)
        self._resume: tuple[int, int] | None = (0, 0)

    @abstractmethod
    def _epoch(self, epoch: int, skip: int) -> Iterator[Any]:
        """Iterate one epoch without its first batches."""

    def __iter__(self) -> Iterator[Any]:
        epoch, skip = self._resume or (self._at[0] + 1, 0)
        self._resume, self._at = None, (epoch, skip)
        for batch, item in enumerate(self._epoch(epoch, skip), start=skip + 1):
            self._at = (epoch, batch)
            yield item
        self._resume = (epoch + 1, 0)

    def state_dict(self) -> dict[str, int]:
        """Return the epoch and the number of batches taken from it."""
        epoch, batch = self._resume or self._at
        return {"epoch": epoch, "batch": batch}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Make the next iteration begin with the batch that followed when `state_dict` was called."""
        self._resume = (int(state["epoch"]), int(state["batch"]))


class ShardedLoader(_Resumable):
    """A copy of the user's `DataLoader` whose order is a function of (seed, rank, epoch)."""

    def __init__(self, loader: data.DataLoader[Any], rank: int, seed: int) -> None:
        super().__init__()
        self.dataset, self.rank, self.seed = loader.dataset, rank, seed
        batches = loader.batch_sampler
        if batches is not None and type(batches) is not data.BatchSampler:
            remedy = "give batch_size instead, or iterate the loader itself"
            raise refuse("batch_sampler", type(batches).__name__, "its order cannot be made a worker's own", remedy)
        # The generator determines the order and seeds the loader's processes, hence the user's augmentations.
        self._generator = torch.Generator()
        order = _reordered(loader.sampler if batches is None else batches.sampler, loader.dataset, self._generator)
        self.batch_size = None if batches is None else batches.batch_size
        self._plan = _Skipping(
            order if batches is None else data.BatchSampler(order, batches.batch_size, batches.drop_last)
        )
        how: dict[str, Any] = {"sampler": self._plan, "batch_size": None}
        self._loader: data.DataLoader[Any] = data.DataLoader(
            loader.dataset,
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            pin_memory=loader.pin_memory,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=self._generator,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
            **(how if batches is None else {"batch_sampler": self._plan}),
        )

    def __len__(self) -> int:
        return len(self._plan)

    def load_state_dict(self, state: dict[str, int]) -> None:
        done = state["batch"] >= len(self)
        super().load_state_dict({"epoch": state["epoch"] + 1, "batch": 0} if done else state)

    def _epoch(self, epoch: int, skip: int) -> Iterator[Any]:
        entropy = np.random.SeedSequence([self.seed, SHARDING, self.rank, epoch]).generate_state(2, np.uint32)
        self._generator.manual_seed(int(entropy[0]) << 31 | int(entropy[1]) >> 1)
        self._plan.skip = skip
        return iter(self._loader)


class ShardedIterable(_Resumable):
    """The user's loader over a stream. Resuming reads and discards the batches that were taken before."""

    def __init__(self, loader: data.DataLoader[Any]) -> None:
        super().__init__()
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def _epoch(self, epoch: int, skip: int) -> Iterator[Any]:
        return itertools.islice(self._loader, skip, None)


class _Skipping(data.Sampler[Any]):
    """A sampler without its first `skip` items, so that resuming does not load them."""

    def __init__(self, inner: data.Sampler[Any]) -> None:
        self.inner = inner
        self.skip = 0

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self.inner, self.skip, None)

    def __len__(self) -> int:
        return len(self.inner)  # type: ignore[arg-type]


def _reordered(sampler: Any, dataset: Any, generator: torch.Generator) -> data.Sampler[Any]:
    if isinstance(sampler, data.SequentialSampler):
        return data.RandomSampler(dataset, generator=generator)
    if not isinstance(sampler, data.Sampler) or not hasattr(sampler, "generator"):
        remedy = "use one with a `generator`, such as RandomSampler, or iterate the loader itself"
        raise refuse("sampler", type(sampler).__name__, "its order cannot be made a worker's own", remedy)
    own: Any = copy.copy(sampler)
    own.generator = generator
    return own  # type: ignore[no-any-return]
