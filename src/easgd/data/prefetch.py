"""Work done ahead on background threads, handed over in the order it was asked for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

Plan = TypeVar("Plan")
Product = TypeVar("Product")


class Prefetcher(Generic[Plan, Product]):
    """Keep `ahead` products ready: `plan()` says what comes next, `make(plan)` does the work on a thread.

    Plans are made on the caller's thread, in order and at the caller's requests, so what comes out does not depend on
    the threads. An exception in `make` is raised by the `next` that would have returned its product.
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
        """Return the plans whose products were not handed over yet: a checkpoint needs them."""
        return [plan for plan, _ in self._pending]

    def restart(self) -> None:
        """Forget what is pending."""
        for _, future in self._pending:
            future.cancel()
        self._pending.clear()

    def close(self) -> None:
        """End the threads."""
        self.restart()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def __iter__(self) -> Iterator[Product]:
        while True:
            yield self.next()
