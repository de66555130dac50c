"""Batches for a training loop: sampled, cropped and scaled on background threads."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from types import TracebackType

import numpy as np
import torch
from torch import Tensor

from easgd.data.format import ImageFile, Ints
from easgd.data.prefetch import Prefetcher
from easgd.data.sampler import CIFAR10, Sampler, Scheme
from easgd.data.seeds import CROPS
from easgd.data.transforms import center_crops, check_crop, cut, labels_of, random_crops
from easgd.errors import refuse

Batch = tuple[Tensor, Tensor]
Plan = tuple[int, Ints]


class Loader:
    """One worker's endless stream of (images, labels) under a `Scheme`.

    Images are float32 in [0, 1], [batch, channels, height, width] in channels_last memory.

    Args:
        file: the data set.
        scheme: how batches are sampled and cropped.
        worker: the worker's rank. Crops are a function of (seed, worker, number of the batch).
        seed: of the run; the same for all workers.
        cursors: path of the cursor file that the worker processes of this machine share.
        sampler: shared instead of `cursors` by workers in one process.
        ahead: batches prepared in advance; 0 prepares them in the calling thread.
        threads: background threads.

    >>> import easgd.data
    >>> with Loader(easgd.data.load("digits"), easgd.data.DIGITS, worker=0) as batches:
    ...     images, labels = next(batches)
    >>> images.shape, labels.shape
    (torch.Size([32, 1, 8, 8]), torch.Size([32]))
    """

    def __init__(
        self,
        file: ImageFile,
        scheme: Scheme = CIFAR10,
        *,
        worker: int = 0,
        seed: int = 0,
        cursors: str | os.PathLike[str] | None = None,
        sampler: Sampler | None = None,
        ahead: int = 4,
        threads: int = 1,
    ) -> None:
        if sampler is not None and (cursors is not None or sampler.count != len(file) or sampler.scheme != scheme):
            raise refuse(
                "sampler", sampler.count, "it was made for other data or another scheme", "share one that fits"
            )
        if ahead < 0 or threads < 1:
            raise refuse("ahead, threads", (ahead, threads), "at least 0 and 1", "0 batches ahead means no threads")
        check_crop(file, scheme.crop)
        self.file, self.scheme, self.worker, self.seed = file, scheme, worker, seed
        self.sampler = sampler or Sampler(
            len(file),
            scheme,
            seed=seed,
            cursors=cursors,
            on_chunk=lambda chunk: file.will_need(chunk.first, chunk.last),
        )
        self.number = 0
        self._planned_before: deque[Ints] = deque()
        self._prefetcher = Prefetcher(self.plan, self.make, ahead=ahead, threads=threads)

    @property
    def batches_per_epoch(self) -> int:
        """The number of images over the batch size, rounded down, at least 1."""
        return max(1, len(self.file) // self.scheme.batch)

    def plan(self) -> Plan:
        """Return the number of the next batch and the numbers of its images. `next` calls this itself."""
        rows = self._planned_before.popleft() if self._planned_before else self.sampler.next(self.worker)
        self.number += 1
        return self.number - 1, rows

    def make(self, plan: Plan) -> Batch:
        """Return a planned batch. Threads may call this in any order."""
        number, rows = plan
        rng = np.random.default_rng([self.seed, CROPS, self.worker, number])
        crops = random_crops(self.file, rows, self.scheme.crop, self.scheme.flip, rng)
        return cut(self.file, rows, crops), labels_of(self.file, rows)

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield self._prefetcher.next()

    def __next__(self) -> Batch:
        return self._prefetcher.next()

    def state_dict(self) -> dict[str, Tensor]:
        """Return what determines the next batches, as integer tensors; includes the batches prepared in advance."""
        pending = self._prefetcher.pending()
        rows = [*(rows for _, rows in pending), *self._planned_before]
        empty = torch.empty(0, self.scheme.batch, dtype=torch.int64)
        return {
            "loader.number": torch.tensor(self.number - len(pending)),
            "loader.pending": torch.from_numpy(np.stack(rows)) if rows else empty,
            **self.sampler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue with the batch that followed when `state_dict` was called."""
        self.sampler.load_state_dict({key: value for key, value in state.items() if not key.startswith("loader.")})
        self._prefetcher.restart()
        self.number = int(state["loader.number"])
        self._planned_before = deque(state["loader.pending"].numpy().copy())

    def close(self) -> None:
        self._prefetcher.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def evaluation(file: ImageFile, crop: int | None = None, batch: int = 200, limit: int | None = None) -> Iterator[Batch]:
    """Yield the center crops of the first `limit` images (all by default) once, in order; the last batch may be short.

    >>> import easgd.data
    >>> sum(len(labels) for images, labels in evaluation(easgd.data.load("digits", "test")))
    364
    """
    check_crop(file, crop)
    count = len(file) if limit is None else min(limit, len(file))
    for start in range(0, count, batch):
        rows = np.arange(start, min(start + batch, count))
        yield cut(file, rows, center_crops(file, rows, crop)), labels_of(file, rows)
