"""Where gradients come from: the user's function, called when a step ends, or ahead of time on the other cores.

A worker's gradient depends only on its own x, its rank and its clock, and x stands still from the moment the step
begins. So the gradients of several workers may be computed side by side, in any order, with the same bits; the
virtual clock alone decides when they count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from easgd.worker.state import WorkerState

Gradient = Callable[[Tensor, int, int], Tensor]
"""gradient(x, worker, step): the stochastic gradient at x, for this worker at its own clock `step`."""


class Gradients:
    """Calls `function` now, or keeps up to `parallel` calls under way (then it must be safe to call from threads)."""

    def __init__(self, function: Gradient, parallel: int = 1) -> None:
        self.function = function
        self.parallel = parallel
        self._ahead: dict[tuple[int, int, int], Future[Tensor]] = {}
        self._pool: ThreadPoolExecutor | None = None
        if parallel > 1:
            threads = torch.get_num_threads()
            # OpenMP's thread count belongs to the calling thread: without this, a pool thread may split its sums
            # otherwise than the main thread would, and the bits differ.
            self._pool = ThreadPoolExecutor(parallel, initializer=torch.set_num_threads, initargs=(threads,))

    def draw(self, worker: WorkerState) -> None:
        """A turn begins: let the function draw what its step will need, in the order of events."""
        if hasattr(self.function, "draw"):
            self.function.draw(worker.rank, worker.clock)

    def loss(self, worker: WorkerState) -> float | None:
        """The loss that came with the worker's last gradient, where the function keeps it."""
        losses: dict[int, float] = getattr(self.function, "losses", {})
        return losses.get(worker.rank)

    def ahead(self, workers: Iterable[WorkerState]) -> None:
        """Begin the gradients of workers whose x is settled, the most urgent first, as far as there is room."""
        if self._pool is None:
            return
        for worker in workers:
            if len(self._ahead) >= self.parallel:
                return
            key = (worker.rank, worker.incarnation, worker.clock)
            if key not in self._ahead:
                self.draw(worker)
                x = worker.replica.read()
                self._ahead[key] = self._pool.submit(self._call, x, worker.rank, worker.clock)

    def _call(self, x: Tensor, rank: int, clock: int) -> Tensor:
        # A function may reuse the memory it answers in; what waits for its step must be a copy.
        return self.function(x, rank, clock).clone()

    def take(self, worker: WorkerState) -> Tensor:
        """Return the gradient of this worker's step."""
        future = self._ahead.pop((worker.rank, worker.incarnation, worker.clock), None)
        x = worker.replica.read()
        g = self.function(x, worker.rank, worker.clock) if future is None else future.result()
        # F = x²/2 has the gradient x: a step must not change its own gradient while it reads it.
        return x.clone() if g is x else g

    def drop(self, worker: WorkerState) -> None:
        """Forget what was begun for a worker that died."""
        for key in [key for key in self._ahead if key[0] == worker.rank]:
            self._ahead.pop(key).cancel()

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
