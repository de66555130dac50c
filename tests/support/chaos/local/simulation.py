"""One simulated run on one machine, from its launcher's start to its end, with the faults of its scenario."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from torch import Tensor

from chaos import primitives
from chaos.local import invariants
from chaos.local.kernel import SimKernel
from chaos.local.launching import LauncherProcess, SimBackend
from chaos.local.memory import SharedState, SharedWords
from chaos.local.scenario import STRIPES, LocalScenario
from chaos.local.witness import LocalWitness, WitnessedLock, WitnessedRounds
from chaos.local.worker import LocalWorker
from chaos.outcome import Outcome, PerProcess
from chaos.scenario import Fault
from chaos.scheduler import Process, Scheduler, Strike
from easgd import locks
from easgd.center.state import CenterState
from easgd.engines.local import client, control, reader, rounds, segment
from easgd.engines.local.control import CONTROL, LIVES, Control
from easgd.engines.local.reader import SharedMemoryReader
from easgd.engines.local.segment import Segment
from easgd.files import write_json
from easgd.launch.launcher import Launcher
from easgd.methods import Method
from easgd.runtime import threading, time

VIRTUAL_SECONDS = 600.0
QUIET_SECONDS = 30.0
"""How long the control words may take to be right once the faults are over."""
MOST_POINTS = 120
"""A fault strikes its process up to so many points later: most of them are in an exchange."""


class LocalSimulation:
    """Starts the run, lets the faults happen, and asks `invariants` in the end."""

    def __init__(self, scenario: LocalScenario, out: Path) -> None:
        self.scenario = scenario
        self.run_folder, self.history = out / "run", out / "history"
        self.run_folder.mkdir()
        self.scheduler = Scheduler(scenario.seed, deadline=VIRTUAL_SECONDS, preempt=scenario.preempt)
        self.kernel = SimKernel(self.scheduler)
        self.witness = LocalWitness(self.scheduler, scenario.size, scenario.method)
        self.workers: list[LocalWorker] = []
        self.launchers: list[LauncherProcess] = []
        self.observer: Process | None = None
        self.first: Tensor | None = None
        """The center's start value."""

    def run(self) -> Outcome:
        with self._installed():
            self.quiet = threading.Event()
            try:
                self.scheduler.run(self._direct)
            except Exception as error:
                self.witness.wrong(f"{type(error).__name__}: {error}")
        return Outcome.of(self.scenario, self.scheduler, self.witness)

    @contextmanager
    def _installed(self) -> Iterator[None]:
        """Put everything in its place that is not the engine's own, and what is private to a process in each."""
        scheduler, create = self.scheduler, Segment.create
        WitnessedLock.witness = SharedState.witness = self.witness
        SharedState.point = staticmethod(scheduler.point)  # type: ignore[assignment]

        def created(folder: Path, method: Method, layout: Any, slots: dict[str, Tensor], *rest: Any) -> None:
            self.first = slots["x"].clone()
            create(folder, method, layout, slots, *rest)

        with ExitStack() as stack:
            stack.enter_context(primitives.installed(scheduler))
            stack.enter_context(self.kernel.installed())
            for where, name, value in (
                (locks, "_OPEN", PerProcess(scheduler, "locks", weakref.WeakValueDictionary)),
                (locks, "SPIN_SECONDS", 2e-5),
                (client, "_MINE", PerProcess(scheduler, "attached", set)),
                (client, "POLL", 2e-3),
                (rounds, "POLL", 5e-3),  # each look costs a switch
                (client, "hold", lambda: None),  # they count for the one real thread that all share
                (client, "let_go", lambda: None),
                (control, "RANKS", invariants.RANKS),  # who is in the run is looked up again and again
                (control.Control, "__init__", shared_words(Control.__init__, scheduler.point)),
                (client, "Rounds", WitnessedRounds),
                (client, "SnapshotLock", WitnessedLock),
                (reader, "SnapshotLock", WitnessedLock),
                (segment, "CenterState", SharedState),
                (segment, "stripes_for", lambda size, fragments=1: [STRIPES] * fragments),
                (Segment, "create", staticmethod(created)),
                (segment, "write_json", lambda *what: scheduler.point() or write_json(*what)),
                (Segment, "states", numbered(Segment.states)),
            ):
                stack.enter_context(patch.object(where, name, value))
            stack.enter_context(patch("easgd.worker.exchange.idle_cores", lambda _: self.scenario.way != "in place"))
            stack.enter_context(patch("easgd.launch.launcher.say", lambda line: scheduler.note(f"says: {line}")))
            stack.enter_context(patch("easgd.launch.launcher.handle_signals", nullcontext))
            yield

    def segment(self) -> Segment | None:
        """The run's memory, as the director sees it."""
        return Segment(self.run_folder) if Control.exists(self.run_folder) else None

    def orphans(self) -> list[LocalWorker]:
        """Workers that were killed with their launcher."""
        return [w for launcher in self.launchers if not launcher.process.alive for w in launcher.backend.mine]

    # the run ---------------------------------------------------------------------------------------------------

    def _direct(self) -> None:
        scheduler = self.scheduler
        scheduler.note(str(self.scenario))
        for fault in self.scenario.faults:
            scheduler.later(fault.at, lambda fault=fault: self._happen(fault))
        self._launch("launcher", self.scenario.workers, joined=False)
        self._observe()
        scheduler.sleep(max((fault.at + fault.seconds for fault in self.scenario.faults), default=0.0))
        self._wait_for_quiet()
        for process in scheduler.processes:
            process.strike = None
        scheduler.note("the faults are over")
        self._agree()
        self.quiet.set()
        while not all(launcher.ended or not launcher.process.alive for launcher in self.launchers):
            scheduler.sleep(0.5)
        self._agree()
        for check in (invariants.accounts, invariants.history):
            for fault in check(self):
                self.witness.wrong(fault)

    def _agree(self) -> None:
        """Wait until the control words are right; they must be before long."""
        end = self.scheduler.now + QUIET_SECONDS
        while self.scheduler.now < end and invariants.membership(self):
            self.scheduler.sleep(0.5)
        for fault in invariants.membership(self):
            self.witness.wrong(fault)

    def _wait_for_quiet(self) -> None:
        """Wait until every worker waits or has ended, and nobody is about to be started again."""
        still = 0
        while still < 4:
            self.scheduler.sleep(0.5)
            busy = [worker for worker in self.workers if worker.living and worker.state != "quiet"]
            still = still + 1 if self.workers and not busy else 0

    def _launch(self, name: str, workers: int, joined: bool) -> None:
        """Start a launcher in a process of its own."""
        launcher = LauncherProcess(name, self.scheduler.process(name), SimBackend(self, joined))
        self.launchers.append(launcher)

        def main() -> None:
            Launcher(launcher.backend, workers, restarts=0 if joined else self.scenario.restarts).run()
            launcher.ended = True
            self.kernel.drop(launcher.process)

        self.scheduler.spawn(launcher.process, main, "main")

    def _observe(self) -> None:
        """Start a process that takes snapshots, as the one that measures a run does."""
        self.observer = process = self.scheduler.process(f"observer-{len(self.scheduler.processes)}")

        def main() -> None:
            view, last = SharedMemoryReader(self.run_folder), 0
            while not self.quiet.is_set():
                time.sleep(self.scheduler.random.expovariate(1.0 / self.scenario.observe_seconds))
                view.snapshot()
                if view.version < last:
                    self.witness.wrong(f"the master's clock went back from {last} to {view.version}")
                last = view.version

        self.scheduler.spawn(process, main, "main")

    # faults ----------------------------------------------------------------------------------------------------

    def kill(self, process: Process) -> None:
        """SIGKILL a process: it stops where it is, and its locks fall open."""
        self.scheduler.kill_where_it_is(process)
        self.kernel.drop(process)

    def _happen(self, fault: Fault) -> None:
        self.scheduler.note(str(fault))
        living = [worker for worker in self.workers if worker.living]
        worker = living[fault.who % len(living)] if living else None
        joiners = [launcher for launcher in self.launchers[1:] if launcher.process.alive and not launcher.ended]
        if fault.what == "kill worker" and worker is not None:
            self._strike(worker.process, worker.kill)
        elif fault.what == "pause" and worker is not None:
            self._strike(worker.process, lambda: self._pause(worker.process, fault.seconds))
        elif fault.what == "join" and not self.launchers[0].ended:
            self._launch(f"joiner-{len(self.launchers)}", 1, joined=True)
        elif fault.what == "kill joiner" and joiners:
            self._kill_launcher(joiners[fault.who % len(joiners)])
        elif fault.what == "kill observer" and self.observer is not None:
            self._strike(self.observer, self._kill_observer)
        elif fault.what == "pause observer" and (observer := self.observer) is not None:
            self._strike(observer, lambda: self._pause(observer, fault.seconds))

    def _strike(self, process: Process, happen: Callable[[], None]) -> None:
        """Let something happen to a process at a point of its own: any, or one where others may wait for it."""
        chance = self.scheduler.random
        strike = Strike(chance.randrange(MOST_POINTS), happen)
        where = chance.choice(("anywhere", "with a lock", "with the control lock"))
        if where != "anywhere":
            below = LIVES if where == "with a lock" else CONTROL + 1
            strike.where = lambda: self.kernel.holds(process, below)
        process.strike = strike

    def _pause(self, process: Process, seconds: float) -> None:
        self.scheduler.note(f"{process} is paused")
        self.scheduler.pause(process, True)
        self.scheduler.later(seconds, lambda: self.scheduler.pause(process, False))

    def _kill_observer(self) -> None:
        assert self.observer is not None
        self.scheduler.note(f"{self.observer} is killed")
        self.kill(self.observer)
        self._observe()

    def _kill_launcher(self, launcher: LauncherProcess) -> None:
        """Kill a launcher that has joined; its workers end with it."""
        self.scheduler.note(f"{launcher.name} is killed")
        self.kill(launcher.process)
        launcher.backend.kill_all()


def shared_words(init: Callable[..., None], point: Callable[[], None]) -> Callable[..., None]:
    """Let control words be read and written at scheduling points."""

    def shared(self: Control, folder: Path) -> None:
        init(self, folder)
        self.words = SharedWords(self.words, point)  # type: ignore[assignment]

    return shared


def numbered(states: Callable[..., list[CenterState]]) -> Callable[..., list[CenterState]]:
    """Let stripes know which they are."""

    def made(self: Segment, method: Method) -> list[CenterState]:
        found = states(self, method)
        for stripe, state in enumerate(found):
            assert isinstance(state, SharedState)
            state.stripe, state.at = stripe, self.bounds[stripe]
        return found

    return made


def simulate(scenario: LocalScenario) -> Outcome:
    """Run a scenario."""
    with tempfile.TemporaryDirectory(prefix="chaos-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as out:
        return LocalSimulation(scenario, Path(out)).run()
