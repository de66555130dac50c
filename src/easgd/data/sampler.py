"""Which images a worker sees, and in what order (supplement, "Data prefetching").

k loaders cycle through the data, each with its own cursor. A worker takes the next chunk of c images from each of the k
loaders, shuffles the k chunks together with what is left of its last ones, and cuts batches. When less than a batch is
left, it takes the next chunks.

The paper does not say where the loaders start. If each has the whole set, loader j starts at image ⌊jN/k⌋ here: if all
started at 0, a worker's first k chunks would contain the same images k times.

The sampler returns image numbers; `easgd.data.loader` makes batches of them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from easgd.data.cursors import Chunk, Cursors, Ring, SharedCursors
from easgd.data.format import Ints
from easgd.data.seeds import SHUFFLE
from easgd.errors import refuse


@dataclass(frozen=True)
class Scheme:
    """The constants of sampling and preprocessing; the defaults are the paper's for CIFAR, without its crops."""

    batch: int = 128  # images per step
    loaders: int = 8  # k
    chunk: int = 512  # c, images that a worker takes from each loader at a time
    shards: bool = False  # each loader has 1/k of the set instead of all of it
    crop: int | None = None  # size of the random crop; None for the whole image
    flip: bool = False  # mirror each image with probability 1/2

    def __post_init__(self) -> None:
        for name in ("batch", "loaders", "chunk"):
            if getattr(self, name) < 1:
                raise refuse(name, getattr(self, name), "must be at least 1", "the paper has 128, 8 and 512")
        if self.crop is not None and self.crop < 1:
            raise refuse("crop", self.crop, "must be at least 1", "use None for the whole image")


CIFAR10 = Scheme(crop=28, flip=True)
IMAGENET = Scheme(chunk=64, shards=True, crop=221, flip=True)
# No flips: a mirrored digit is another shape. 8 chunks of 128 are less than the set's 1,433 images.
DIGITS = Scheme(batch=32, chunk=128)


class _Worker:
    """One worker's pool of shuffled image numbers; the first `used` are in earlier batches."""

    def __init__(self) -> None:
        self.pool: Ints = np.empty(0, np.int64)
        self.used = 0
        self.refills = 0


class Sampler:
    """Batches of image numbers for any number of workers.

    Workers in one process (a simulation) share one sampler. Worker processes of one machine each make a sampler with
    the same arguments, and share the file `cursors`. The same seed and the same order of requests give the same
    batches. `on_chunk` is called with every chunk that is taken, before its images are used.

    >>> sampler = Sampler(1000, Scheme(batch=32, loaders=2, chunk=100))
    >>> len(sampler.next(worker=0)), len(set(sampler.next(worker=1)))
    (32, 32)
    """

    def __init__(
        self,
        count: int,
        scheme: Scheme = CIFAR10,
        *,
        seed: int = 0,
        cursors: str | os.PathLike[str] | None = None,
        on_chunk: Callable[[Chunk], object] | None = None,
    ) -> None:
        if count < (scheme.loaders if scheme.shards else 1):
            raise refuse("images", count, f"{scheme.loaders} loaders need at least one each", "use fewer loaders")
        self.count, self.scheme, self.seed = count, scheme, seed
        self._on_chunk = on_chunk
        settings = (rings(count, scheme), scheme.chunk, scheme.batch, seed)
        self.cursors = Cursors(*settings) if cursors is None else SharedCursors(*settings, cursors)
        self._workers: dict[int, _Worker] = {}

    def next(self, worker: int = 0) -> Ints:
        """Return the numbers of the `batch` images of the worker's next step."""
        own = self._workers.setdefault(worker, _Worker())
        batch = self.scheme.batch
        while len(own.pool) - own.used < batch:
            self._refill(own, worker)
        own.used += batch
        return own.pool[own.used - batch : own.used]

    def _refill(self, own: _Worker, worker: int) -> None:
        chunks = [self.cursors.take(loader) for loader in range(self.scheme.loaders)]
        if self._on_chunk is not None:
            for chunk in chunks:
                self._on_chunk(chunk)
        fresh = [np.arange(chunk.first, chunk.last) for chunk in chunks]
        pool = np.concatenate([own.pool[own.used :], *fresh])
        np.random.default_rng([self.seed, SHUFFLE, worker, own.refills]).shuffle(pool)
        own.pool, own.used, own.refills = pool, 0, own.refills + 1

    def batches(self, worker: int = 0) -> Iterator[Ints]:
        """Yield a worker's batches without end."""
        while True:
            yield self.next(worker)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the cursors and the pools of this process's workers, as integer tensors."""
        state = {"settings": self._settings(), "cursors": torch.from_numpy(self.cursors.snapshot())}
        for worker, own in self._workers.items():
            state[f"worker.{worker}.pool"] = torch.from_numpy(own.pool[own.used :].copy())
            state[f"worker.{worker}.refills"] = torch.tensor(own.refills)
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue with the batch that followed when `state_dict` was called."""
        if not torch.equal(state["settings"], self._settings()):
            raise refuse(
                "sampler state",
                state["settings"].tolist(),
                f"this sampler has (images, batch, loaders, chunk, shards, seed) = {self._settings().tolist()}",
                "resume with the settings of the checkpoint",
            )
        self.cursors.restore(state["cursors"].numpy())
        self._workers = {}
        for key in state:
            if key.endswith(".pool"):
                own = self._workers[int(key.split(".")[1])] = _Worker()
                own.pool = state[key].numpy().copy()
                own.refills = int(state[key.replace(".pool", ".refills")])

    def _settings(self) -> Tensor:
        s = self.scheme
        return torch.tensor([self.count, s.batch, s.loaders, s.chunk, int(s.shards), self.seed])


def rings(count: int, scheme: Scheme) -> list[Ring]:
    """Return each loader's part of the data set: all of it, starting at jN/k, or the j-th of k nearly equal parts."""
    edges = [j * count // scheme.loaders for j in range(scheme.loaders + 1)]
    if scheme.shards:
        return [Ring(first, last - first, 0) for first, last in itertools.pairwise(edges)]
    return [Ring(0, count, start) for start in edges[:-1]]
