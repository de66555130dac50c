"""One seeded scheduler for all threads of a simulated cluster, and its virtual clock.

Only one simulated thread runs at a time. Whoever waits, or comes to a point where it may be preempted, picks the next
thread by the seed's random numbers and lets it run (`carriers`: how). Time stands still while anybody can run, but for
a few microseconds a switch; then it jumps to the next timer.
"""

from __future__ import annotations

import heapq
import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chaos.carriers import carriers

SWITCH_SECONDS = 5e-6
MOST_SWITCHES = 400_000


class Killed(BaseException):
    """The process of this thread was killed: nothing of it runs any more."""


class StuckError(Exception):
    """The simulation does not come to an end."""


@dataclass
class Strike:
    """What happens to a process, and after how many more of its points; only those `where` says so count."""

    points: int
    happen: Callable[[], None]
    where: Callable[[], bool] = lambda: True


class Process:
    """Threads that live and die together."""

    def __init__(self, name: str) -> None:
        self.name, self.alive, self.paused = name, True, False
        self.threads: list[Thread] = []
        self.parked: list[Thread] = []
        self.strike: Strike | None = None
        self.on_kill: list[Callable[[], None]] = []
        self.data: dict[str, Any] = {}

    def __repr__(self) -> str:
        return self.name


class Thread:
    """One simulated thread."""

    def __init__(self, process: Process, target: Callable[[], None], name: str) -> None:
        self.process, self.target, self.name = process, target, name
        self.carrier: Any = None
        self.blocked = self.woken = self.killed = self.ended = False
        self.waits = 0
        self.on_end: list[Callable[[], None]] = []


class Scheduler:
    """See the module's docstring. `preempt` is the share of such points at which another thread may run."""

    def __init__(self, seed: int, *, deadline: float, preempt: float = 0.2) -> None:
        self.random = random.Random(seed)
        self.now, self.deadline, self.preempt = 0.0, deadline, preempt
        self.switches = self.signature = 0
        self.failure: BaseException | None = None
        self.ending = False
        self.trace: list[tuple[float, str, str]] = []
        self.processes: list[Process] = []
        self.current: Thread | None = None
        self._ready: list[Thread] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._carriers = carriers(self._run, self._next)

    # called from outside ---------------------------------------------------------------------------------------

    def run(self, director: Callable[[], None]) -> None:
        """Run `director` as the first thread until it ends; then end all others. Raises what went wrong."""
        process = self.process("director")

        def direct() -> None:
            try:
                director()
            finally:
                self.end_all()

        self.spawn(process, direct, "director")
        self._carriers.drive()
        if self.failure is not None:
            raise self.failure

    def end_all(self) -> None:
        """Kill every process: the scenario is over."""
        self.ending = True
        self._timers.clear()
        for process in self.processes:
            self.kill(process)

    def fail(self, error: BaseException) -> None:
        """Note the first thing that went wrong, and end the scenario."""
        if self.failure is None:
            self.failure = error
        self.end_all()

    # processes and threads -------------------------------------------------------------------------------------

    def process(self, name: str) -> Process:
        process = Process(name)
        self.processes.append(process)
        return process

    def spawn(self, process: Process, target: Callable[[], None], name: str) -> Thread:
        """Make a thread; it runs when it is picked."""
        thread = Thread(process, target, name)
        if process.alive and not self.ending:
            process.threads.append(thread)
            self._ready.append(thread)
        else:
            thread.ended = True
        return thread

    def _run(self, thread: Thread) -> None:
        """A thread from its beginning to its end."""
        try:
            if not thread.killed:
                thread.target()
        except Killed:
            pass
        except BaseException as error:  # the simulated code has a bug: the scenario fails with it
            self.fail(error)
        thread.ended = True
        if thread in thread.process.threads:
            thread.process.threads.remove(thread)
        for callback in thread.on_end:
            callback()

    def kill(self, process: Process) -> None:
        """Let none of its threads run on: each ends where it is."""
        process.alive = process.paused = False
        self._ready += process.parked
        process.parked = []
        for thread in process.threads:
            thread.killed = True
            if thread.blocked:
                thread.blocked = False
                self._ready.append(thread)
        for callback in process.on_kill:
            callback()

    def pause(self, process: Process, paused: bool) -> None:
        """Stop all threads of a process, as SIGSTOP does, or let them go on."""
        if not process.alive:
            return
        process.paused = paused
        if not paused:
            self._ready += process.parked
            process.parked = []

    def kill_where_it_is(self, process: Process) -> None:
        """SIGKILL: its threads stop for good, and not even a `finally` of theirs runs, until the scenario is over.

        `kill` lets them unwind, which is as good where processes share no memory.
        """
        process.alive, process.paused = False, True

    # called by simulated threads -------------------------------------------------------------------------------

    @property
    def me(self) -> Thread:
        """The thread that runs; Killed if it must not."""
        thread = self.current
        assert thread is not None, "outside the simulation"
        if thread.killed:
            raise Killed
        return thread

    def point(self) -> None:
        """A point at which another thread may run first."""
        thread = self.me
        if (strike := thread.process.strike) is not None:
            strike.points -= strike.where()
            if strike.points < 0:
                thread.process.strike = None
                strike.happen()
        if thread.process.paused or self.random.random() < self.preempt:
            self._ready.append(thread)
            self._switch(thread)

    def block(self, seconds: float | None = None) -> bool:
        """Wait for `wake`; False if the time is over first."""
        thread = self.me
        thread.waits += 1
        thread.blocked, thread.woken = True, False
        if seconds is not None:
            ticket = thread.waits

            def over() -> None:
                if thread.blocked and thread.waits == ticket:
                    thread.blocked = False
                    self._ready.append(thread)

            self.later(seconds, over)
        self._switch(thread)
        return thread.woken

    def wake(self, thread: Thread) -> None:
        """Let a thread that is blocked run on."""
        if thread.blocked:
            thread.blocked, thread.woken = False, True
            self._ready.append(thread)

    def sleep(self, seconds: float) -> None:
        self.block(max(0.0, seconds))

    def later(self, seconds: float, callback: Callable[[], None]) -> None:
        """Call something in a while; it must not wait."""
        self._count += 1
        heapq.heappush(self._timers, (self.now + max(0.0, seconds), self._count, callback))

    def note(self, what: str) -> None:
        """Add a line to the trace."""
        who = "" if self.current is None else self.current.process.name
        self.trace.append((self.now, who, what))

    # who runs --------------------------------------------------------------------------------------------------

    def _switch(self, thread: Thread) -> None:
        following = self._next()
        assert following is not None, "this thread is blocked, and not killed"
        if following is not thread:
            self._carriers.switch(thread, following)
        if thread.killed:
            raise Killed

    def _next(self) -> Thread | None:
        """Pick who runs next, and let time pass where nobody can; None when all have ended."""
        self.switches += 1
        self.now += SWITCH_SECONDS
        if not self.ending and (self.switches > MOST_SWITCHES or self.now > self.deadline):
            self._stuck("the deadline has passed" if self.now > self.deadline else "too many switches")
        while True:
            while self._timers and self._timers[0][0] <= self.now:
                heapq.heappop(self._timers)[2]()
            while self._ready:
                k = self.random.randrange(len(self._ready))
                self._ready[k], self._ready[-1] = self._ready[-1], self._ready[k]
                thread = self._ready.pop()
                if thread.process.paused:
                    thread.process.parked.append(thread)
                    continue
                self.signature = hash((self.signature, k, round(self.now * 1e6)))
                self.current = thread
                return thread
            if self._timers:
                self.now = max(self.now, self._timers[0][0])
                if self.now <= self.deadline or self.ending:
                    continue
                self._stuck("the deadline has passed")
            elif self.ending:
                return None
            else:
                self._stuck("everybody waits for ever")

    def _stuck(self, why: str) -> None:
        self.fail(StuckError(f"{why} at {self.now:.3f} s\n{self.waiting()}"))

    def waiting(self) -> str:
        """Say where each thread is."""
        lines = []
        for process in self.processes:
            for thread in process.threads:
                lines.append(f"{process.name}: {thread.name}{'' if thread.blocked else ' (ready)'}")
                if (frame := self._carriers.frame(thread)) is not None:
                    stack = traceback.extract_stack(frame)
                    own = [f for f in stack if "/easgd/" in f.filename or f.filename.endswith("worker.py")]
                    lines += [f"    {f.filename.rsplit('/', 1)[-1]}:{f.lineno} {f.name}: {f.line}" for f in own[-4:]]
        return "\n".join(lines)
