"""Work done ahead of time on background threads, returned in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Plan = TypeVar("Plan")
Product = TypeVar("Product")


class Prefetcher(Generic[Plan, Product]):
    """Keep `ahead` products ready: `plan()` decides what comes next, `make(plan)` computes it on a thread.

    `plan` runs in the caller's thread and in order, so the results do not depend on the threads. An exception in `make`
    is raised by the `next` that would have returned its product.

    >>> numbers = iter(range(100))
    >>> squares = Prefetcher(lambda: next(numbers), lambda n: n * n)
    >>> [squares.next() for _ in range(4)]
    [0, 1, 4, 9]
    >>> squares.close()
    """

    def __init__(
        self, plan: Callable[[], Plan], make: Callable[[Plan], Product], *, ahead: int = 4, threads: int = 1
    ) -> None:
        self._plan, self._make, self._ahead = plan, make, ahead
        self._pool = ThreadPoolExecutor(threads, "easgd-data") if ahead > 0 else None
        self._pending: deque[tuple[Plan, Future[Product]]] = deque()

    def next(self) -> Product:
        """Return the next product; wait only if it is not ready yet."""
        if self._pool is None:
            return self._make(self._plan())
        self._fill(self._pool)
        _, future = self._pending.popleft()
        product = future.result()
        self._fill(self._pool)
        return product

    def _fill(self, pool: ThreadPoolExecutor) -> None:
        while len(self._pending) < self._ahead:
            plan = self._plan()
            self._pending.append((plan, pool.submit(self._make, plan)))

    def pending(self) -> list[Plan]:
        """Return the plans whose products were not returned yet: a checkpoint needs them."""
        return [plan for plan, _ in self._pending]

    def restart(self) -> None:
        """Discard what is pending; the next product is a newly planned one."""
        for _, future in self._pending:
            future.cancel()
        self._pending.clear()

    def close(self) -> None:
        self.restart()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def __iter__(self) -> Iterator[Product]:
        while True:
            yield self.next()
