"""Ray's actors and the calls to them, on a simulated network.

An actor is a simulated process that holds a real object. A call may take any time, fail before or after it was
executed, or be executed while a later one is; the actor may be killed, and is then started again, empty, by its
factory: all that Ray promises, and nothing more. What is passed is pickled, so that no memory is shared.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ray.exceptions import GetTimeoutError, RayActorError, RayError

from chaos.event_loop import SimLoop
from chaos.network import Network
from chaos.scheduler import Process, Scheduler, Thread
from easgd.engines.ray.calls import ray as calls

REPEATABLE = ("enroll", "exchange")
"""Calls that the network may repeat, or lose without a word: Ray does neither, but sockets and their retries do."""


class FailedCallError(RayError):
    """The method raised something (Ray's `RayTaskError`)."""


class Ref:
    """The answer to a call, which has come or not."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler, self.done = scheduler, False
        self.value: Any = None
        self.error: BaseException | None = None
        self._waiters: list[Thread] = []
        self._callbacks: list[Callable[[], None]] = []

    def settle(self, value: Any = None, error: BaseException | None = None) -> None:
        """Set the answer; only the first counts."""
        if self.done:
            return
        self.done, self.value, self.error = True, value, error
        for thread in self._waiters:
            self.scheduler.wake(thread)
        for callback in self._callbacks:
            callback()

    def wait(self, end: float | None) -> bool:
        """Wait until the answer is there; False if the time is over first."""
        while not self.done:
            left = None if end is None else end - self.scheduler.now
            if left is not None and left <= 0:
                return False
            self._waiters.append(self.scheduler.me)
            self.scheduler.block(left)
        return True

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return pickle.loads(self.value)

    def __await__(self) -> Any:
        loop = asyncio.get_running_loop()
        future = loop.create_future()

        def settled() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(lambda: future.done() or future.set_result(None))

        if self.done:
            settled()
        else:
            self._callbacks.append(settled)
        yield from future.__await__()
        return self.result()


class Actor:
    """A process that Ray keeps alive.

    Args:
        cluster: where it lives.
        name: by which it is found.
        factory: makes the object, in the actor's own process.
        coroutines: whether its methods are coroutines on one event loop; else each call has a thread.
    """

    def __init__(self, cluster: Cluster, name: str, factory: Callable[[], Any], coroutines: bool) -> None:
        self.cluster, self.scheduler, self.name = cluster, cluster.scheduler, name
        self.factory, self.coroutines = factory, coroutines
        self.object: Any = None
        self.process: Process | None = None
        self.starts, self.stopped = 0, False
        self._pending: list[Ref] = []  # calls to the present process that have not been answered
        self._queue: list[Callable[[], None]] = []  # calls that came before it was ready
        self._loop: SimLoop | None = None

    def start(self) -> None:
        self.starts += 1
        self.process = self.scheduler.process(f"{self.name}#{self.starts - 1}")
        self.scheduler.spawn(self.process, self._boot, "main")

    def _boot(self) -> None:
        self._loop = SimLoop(self.scheduler) if self.coroutines else None
        self.object = self.factory()
        queue, self._queue = self._queue, []
        for execute in queue:
            execute()
        if self._loop is not None:
            self._loop.serve()

    def crash(self, restart: float) -> None:
        """Kill the process; Ray starts another one after `restart` seconds."""
        if self.process is None:
            return
        self.scheduler.note(f"{self.name} is killed; again in {restart:.2f} s")
        self._end()
        self.object = None
        self.scheduler.later(restart, self._restart)

    def stop(self) -> None:
        """End the process for good."""
        self.stopped = True
        self._end()

    def _end(self) -> None:
        if self.process is not None:
            self.scheduler.kill(self.process)
        self.process, self._queue = None, []
        pending, self._pending = self._pending, []
        for ref in pending:  # Ray tells the callers, each in its own time
            self.scheduler.later(self.cluster.network.delay(), partial(ref.settle, None, dead(self.name)))

    def _restart(self) -> None:
        if not self.stopped:
            self.scheduler.note(f"{self.name} is started again")
            self.start()

    def call(self, method: str, args: tuple[Any, ...]) -> Ref:
        """Send a call from the present process."""
        self.scheduler.point()
        network, weather, chance = self.cluster.network, self.cluster.network.weather, self.scheduler.random
        source, ref, packed = self.cluster.here(), Ref(self.scheduler), pickle.dumps(args)
        process = self.process
        if process is None:
            self.scheduler.later(network.delay(), partial(ref.settle, None, dead(self.name)))
            return ref
        self._pending.append(ref)
        fate = chance.random()
        fails = fate < weather.broken
        lost = fails or (method in REPEATABLE and fate < weather.broken + weather.silent)
        before = lost and chance.random() < 0.5
        if fails:
            self.scheduler.later(chance.uniform(0.01, 2.0), partial(ref.settle, None, dead(self.name)))
        answer_to = Ref(self.scheduler) if lost else ref
        arrive = partial(self._arrive, process, source, method, packed, answer_to)
        if not before:
            network.carry(source, self.name, arrive)
        if method in REPEATABLE and chance.random() < weather.repeated:
            again = partial(self._arrive, process, source, method, packed, Ref(self.scheduler))
            self.scheduler.later(chance.uniform(0.0, 3.0), partial(network.carry, source, self.name, again))
        return ref

    def _arrive(self, process: Process, source: str, method: str, packed: bytes, ref: Ref) -> None:
        if self.process is not process:
            return  # it died meanwhile, and the caller hears of that
        if self.object is None:
            self._queue.append(partial(self._execute, process, source, method, packed, ref))
        else:
            self._execute(process, source, method, packed, ref)

    def _execute(self, process: Process, source: str, method: str, packed: bytes, ref: Ref) -> None:
        def answer(value: Any = None, error: BaseException | None = None) -> None:
            packed = None if error is not None else pickle.dumps(value)

            def deliver() -> None:
                if ref in self._pending:
                    self._pending.remove(ref)
                ref.settle(packed, error)

            if process.alive:
                self.cluster.network.carry(self.name, source, deliver)

        if self._loop is not None:
            self._loop.call_soon_threadsafe(lambda: self._task(method, packed, answer))
        else:
            self.scheduler.spawn(process, lambda: self._run(method, packed, answer), method)

    def _run(self, method: str, packed: bytes, answer: Callable[..., None]) -> None:
        try:
            value = getattr(self.object, method)(*pickle.loads(packed))
        except Exception as error:
            answer(error=FailedCallError(f"{method}: {type(error).__name__}: {error}"))
            self.cluster.failed_calls.append((self.name, method, error))
        else:
            answer(value)

    def _task(self, method: str, packed: bytes, answer: Callable[..., None]) -> None:
        async def run() -> None:
            try:
                value = await getattr(self.object, method)(*pickle.loads(packed))
            except Exception as error:
                answer(error=FailedCallError(f"{method}: {type(error).__name__}: {error}"))
                self.cluster.failed_calls.append((self.name, method, error))
            else:
                answer(value)

        assert self._loop is not None
        task = self._loop.create_task(run())
        self.cluster.tasks.add(task)
        task.add_done_callback(self.cluster.tasks.discard)


def dead(name: str) -> RayActorError:
    return RayActorError(error_msg=f"{name} does not answer (simulated)")


class Handle:
    """What `ray.get_actor` returns."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __reduce__(self) -> Any:
        return Handle, (self._name,)

    def __getattr__(self, method: str) -> Any:
        if method.startswith("__"):
            raise AttributeError(method)
        return Method(self._name, method)


class Method:
    def __init__(self, actor: str, method: str) -> None:
        self.actor, self.method = actor, method

    def remote(self, *args: Any) -> Ref:
        assert Cluster.current is not None
        return Cluster.current.actors[self.actor].call(self.method, args)


class Cluster:
    """All actors of one simulation, and Ray's functions on them."""

    current: Cluster | None = None

    def __init__(self, scheduler: Scheduler, network: Network) -> None:
        self.scheduler, self.network = scheduler, network
        self.actors: dict[str, Actor] = {}
        self.failed_calls: list[tuple[str, str, Exception]] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.names: set[str] = set()
        """Of workers: they are actors too."""

    def here(self) -> str:
        """The name of the present process, without its incarnation."""
        return self.scheduler.me.process.name.partition("#")[0]

    def actor(self, name: str, factory: Callable[[], Any], coroutines: bool = False) -> Handle:
        """Start an actor."""
        self.actors[name] = Actor(self, name, factory, coroutines)
        self.actors[name].start()
        return Handle(name)

    # Ray's functions -------------------------------------------------------------------------------------------

    def get(self, refs: Any, timeout: float | None = None) -> Any:
        several = isinstance(refs, list)
        end = None if timeout is None else self.scheduler.now + timeout
        for ref in refs if several else [refs]:
            if not ref.wait(end):
                raise GetTimeoutError("simulated")
        values = [ref.result() for ref in (refs if several else [refs])]
        return values if several else values[0]

    def wait(
        self, refs: list[Ref], num_returns: int = 1, timeout: float | None = None, fetch_local: bool = True
    ) -> tuple[list[Ref], list[Ref]]:
        end = None if timeout is None else self.scheduler.now + timeout
        if num_returns == len(refs):
            done = [ref for ref in refs if ref.wait(end)]
            return done, [ref for ref in refs if ref not in done]
        while not any(ref.done for ref in refs):
            left = None if end is None else end - self.scheduler.now
            if left is not None and left <= 0:
                break
            for ref in refs:
                ref._waiters.append(self.scheduler.me)
            self.scheduler.block(left)
        done = [ref for ref in refs if ref.done][:num_returns]
        return done, [ref for ref in refs if ref not in done]

    def kill(self, actor: Handle) -> None:
        """End an actor for good; its object can still be looked at."""
        self.scheduler.point()
        self.actors[actor._name].stop()

    def get_actor(self, name: str, namespace: str | None = None) -> Handle:
        self.scheduler.point()
        if name not in self.names and (name not in self.actors or self.actors[name].stopped):
            raise ValueError(f"no actor {name}")
        return Handle(name)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Answer the engine's calls to Ray."""
        before = dict(vars(calls))
        one = {"CPU": 64.0}
        try:
            Cluster.current = self
            vars(calls).update(
                get=self.get, wait=self.wait, kill=self.kill, get_actor=self.get_actor,
                nodes=lambda: [{"Alive": True, "Resources": one, "NodeID": "0"}],
                cluster_resources=lambda: one, available_resources=lambda: one,
            )  # fmt: skip
            yield
        finally:
            vars(calls).update(before)
            Cluster.current = None
            for task in self.tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
