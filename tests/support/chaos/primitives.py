"""Python's clock and threads, as a simulated process sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from chaos.scheduler import Scheduler, Thread
from easgd import runtime

EPOCH = 1_700_000_000.0
"""The time of day at which simulations begin."""


class SimCondition:
    """A condition with a reentrant lock, as `threading.Condition()`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.owner: Thread | None = None
        self.depth = 0
        self.entering: list[Thread] = []
        self.waiters: list[Thread] = []

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self) -> bool:
        self.scheduler.point()
        self._take(1)
        return True

    def _take(self, depth: int) -> None:
        me = self.scheduler.me
        while self.owner is not None and self.owner is not me:
            self.entering.append(me)
            self.scheduler.block()
        self.owner = me
        self.depth += depth

    def release(self) -> None:
        if self.scheduler.current is not self.owner:
            return  # it was killed while it waited
        self.depth -= 1
        if self.depth == 0:
            self._give()

    def _give(self) -> None:
        self.owner = None
        entering, self.entering = self.entering, []
        for thread in entering:
            self.scheduler.wake(thread)

    def wait(self, timeout: float | None = None) -> bool:
        me, depth = self.scheduler.me, self.depth
        self.depth = 0
        self._give()
        self.waiters.append(me)
        woken = self.scheduler.block(timeout)
        if me in self.waiters:
            self.waiters.remove(me)
        self._take(depth)
        return woken

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        end = None if timeout is None else self.scheduler.now + timeout
        while not (found := predicate()):
            left = None if end is None else end - self.scheduler.now
            if left is not None and left <= 0:
                break
            self.wait(left)
        return found

    def notify(self, n: int = 1) -> None:
        waiters, self.waiters = self.waiters[:n], self.waiters[n:]
        for thread in waiters:
            self.scheduler.wake(thread)

    def notify_all(self) -> None:
        self.notify(len(self.waiters))


class SimEvent:
    """`threading.Event`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.condition, self.flag = SimCondition(scheduler), False

    def is_set(self) -> bool:
        return self.flag

    def set(self) -> None:
        with self.condition:
            self.flag = True
            self.condition.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        with self.condition:
            return self.condition.wait_for(lambda: self.flag, timeout)


class SimSemaphore:
    """`threading.Semaphore`."""

    def __init__(self, scheduler: Scheduler, value: int = 1) -> None:
        self.condition, self.value = SimCondition(scheduler), value

    def acquire(self) -> bool:
        with self.condition:
            self.condition.wait_for(lambda: self.value > 0)
            self.value -= 1
        return True

    def release(self) -> None:
        with self.condition:
            self.value += 1
            self.condition.notify()


class SimThread:
    """`threading.Thread`, in the process of whoever makes it."""

    def __init__(
        self, scheduler: Scheduler, target: Callable[..., None], name: str = "thread", args: tuple[Any, ...] = (),
        daemon: bool | None = None,
    ) -> None:  # fmt: skip
        self.scheduler, self.name, self.daemon = scheduler, name, daemon
        self._target = lambda: target(*args)
        self._thread: Thread | None = None
        self._joining: list[Thread] = []

    def start(self) -> None:
        me = self.scheduler.me
        self._thread = self.scheduler.spawn(me.process, self._target, self.name)
        self._thread.on_end.append(lambda: [self.scheduler.wake(t) for t in self._joining])
        self.scheduler.point()

    def is_alive(self) -> bool:
        return self._thread is not None and not self._thread.ended

    def join(self, timeout: float | None = None) -> None:
        end = None if timeout is None else self.scheduler.now + timeout
        while self.is_alive() and (end is None or self.scheduler.now < end):
            self._joining.append(self.scheduler.me)
            self.scheduler.block(None if end is None else end - self.scheduler.now)


class SimTimer(SimThread):
    """`threading.Timer`."""

    def __init__(
        self, scheduler: Scheduler, interval: float, function: Callable[..., None], args: tuple[Any, ...] = ()
    ) -> None:
        super().__init__(scheduler, self._fire, "timer")
        self._event, self._interval, self._function, self._args = SimEvent(scheduler), interval, function, args

    def _fire(self) -> None:
        if not self._event.wait(self._interval):
            self._function(*self._args)

    def cancel(self) -> None:
        self._event.set()


class SimFuture:
    """What a pool's `submit` returns."""

    def __init__(self, scheduler: Scheduler, function: Callable[[], Any]) -> None:
        self._function, self._done = function, SimEvent(scheduler)
        self._value: Any = None
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self._value = self._function()
        except Exception as error:
            self._error = error
        self._done.set()

    def exception(self) -> Exception | None:
        self._done.wait()
        return self._error

    def result(self) -> Any:
        if (error := self.exception()) is not None:
            raise error
        return self._value


class SimPool:
    """`ThreadPoolExecutor` with one thread."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self._work: list[SimFuture] = []
        self._thread: SimThread | None = None

    def submit(self, function: Callable[..., Any], *args: Any) -> SimFuture:
        future = SimFuture(self.scheduler, lambda: function(*args))
        self._work.append(future)
        if self._thread is None or not self._thread.is_alive():
            self._thread = SimThread(self.scheduler, self._run, "pool")
            self._thread.start()
        return future

    def _run(self) -> None:
        while self._work:
            self._work.pop(0).run()

    def shutdown(self, wait: bool = True) -> None:
        if self._thread is not None:
            self._thread.join()


@contextmanager
def installed(scheduler: Scheduler) -> Iterator[None]:
    """Put the scheduler's clock and threads in the place of Python's."""
    clock, threads = dict(vars(runtime.time)), dict(vars(runtime.threading))
    last = [0]

    def monotonic_ns() -> int:
        """Return a number that is larger than the last one, though the clock may stand still."""
        last[0] = max(last[0] + 1, round(1e9 * scheduler.now))
        return last[0]

    try:
        vars(runtime.time).update(
            time=lambda: EPOCH + scheduler.now,
            monotonic=lambda: scheduler.now,
            monotonic_ns=monotonic_ns,
            perf_counter=lambda: scheduler.now,
            thread_time=lambda: 0.0,
            sleep=scheduler.sleep,
        )
        vars(runtime.threading).update(
            Condition=lambda: SimCondition(scheduler),
            RLock=lambda: SimCondition(scheduler),
            Event=lambda: SimEvent(scheduler),
            Semaphore=lambda value=1: SimSemaphore(scheduler, value),
            Thread=lambda **options: SimThread(scheduler, **options),
            Timer=lambda *options: SimTimer(scheduler, *options),
            ThreadPoolExecutor=lambda *_, **__: SimPool(scheduler),
        )
        yield
    finally:
        vars(runtime.time).update(clock)
        vars(runtime.threading).update(threads)
