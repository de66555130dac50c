"""Workers as processes of this machine: a `Backend` of the launcher. They exchange on the center in shared memory."""

from __future__ import annotations

import os
import queue
import selectors
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from easgd.engines.local.control import CENTERS, RANKS, Control, mark_dead, origin
from easgd.engines.local.environment import worker_environment
from easgd.engines.local.function import pack
from easgd.engines.local.group import WorkerProcesses
from easgd.engines.local.kept_template import borrow, give_back
from easgd.engines.local.process import WorkerProcess
from easgd.engines.local.ranks import Ranks
from easgd.engines.local.template import Template
from easgd.errors import SettingError, refuse
from easgd.groups.names import by_model
from easgd.launch import accelerators
from easgd.launch.backend import Change, Ended, RunRequest
from easgd.launch.checks import check_gpus
from easgd.launch.event_log import EventLog, prepare
from easgd.launch.output import say
from easgd.launch.process import Lifeline
from easgd.launch.run_directory import JoinedRun, OwnedRun, Run
from easgd.worker.context import DEFAULT_CENTER

if TYPE_CHECKING:
    from torch import Tensor

    from easgd.engines.local.reader import SharedMemoryReader


FORK = "EASGD_FORK"
"""Variable that, set to 0, gives every worker an interpreter of its own."""
READER = "easgd.engines.local.client"
"""Where the final center is read; importing it takes seconds."""
RECORDING = "easgd.engines.local.recording"


@contextmanager
def start_run(request: RunRequest) -> Iterator[LocalBackend]:
    """Make a run directory, and remove it at the end."""
    _check(request)
    with _arguments(request) as (arguments, inherit):
        run = OwnedRun(request)
        try:
            yield LocalBackend(run, request, arguments, inherit)
        finally:
            run.close()


@contextmanager
def join_run(reference: str, request: RunRequest) -> Iterator[LocalBackend]:
    """Find the run directory of another launcher by its id or path."""
    _check(request)
    with _arguments(request) as (arguments, inherit):
        yield LocalBackend(JoinedRun(reference), request, arguments, inherit)


def _check(request: RunRequest) -> None:
    if request.workers > RANKS:
        raise refuse("workers", request.workers, f"one machine has at most {RANKS}", "start fewer")
    for name, value in request.options.items():
        if name != "gpus":
            raise SettingError(f"{name} = {value}: only engine='ray' takes it; leave it out, or add --ray ADDRESS")
    check_gpus(request.options.get("gpus"))


@contextmanager
def _arguments(request: RunRequest) -> Iterator[tuple[list[str], list[int]]]:
    """Give the child's arguments, and the descriptors that it inherits."""
    kind, *rest = request.target
    if kind != "function":
        yield [kind, *rest], []
        return
    with pack(*rest) as file:
        yield [kind, str(file.fileno())], [file.fileno()]


class LocalBackend:
    """The processes of one run."""

    where = ""

    def __init__(self, run: Run, request: RunRequest, arguments: Sequence[str], inherit: Sequence[int]) -> None:
        self.directory, self.request, self.arguments, self.inherit = run, request, arguments, inherit
        self.run_id, self.out, self.joined = run.id, run.out, isinstance(run, JoinedRun)
        self.event_log: EventLog | None = EventLog(self.out, self._zero)
        self._living: dict[int, WorkerProcess | WorkerProcesses] = {}
        self._template: Template | None = None
        self._importing = False
        self._paused: set[int] = set()  # process ids

    def _zero(self) -> float:
        return self.began() or self.directory.description.origin

    def began(self) -> float | None:
        return origin(self.directory.path)

    def signal(self, rank: int, number: int) -> None:
        if rank in self._living:
            for process in self._living[rank].processes:
                with suppress(ProcessLookupError):
                    os.kill(process.pid, number)

    def open(self) -> None:
        if not self.joined:
            prepare(self.out, resumed=self.request.elapsed is not None)
        gpus = self.request.options.get("gpus")
        self._accelerators = accelerators.Accelerators(
            *accelerators.find(), self.directory.description.workers, gpus, os.environ
        )
        if not self.joined and (line := self._accelerators.sharing()):
            say(line)
        self._ranks, self._selector = Ranks(self.directory.path), selectors.DefaultSelector()
        self._lifeline, self._deaths = Lifeline(), DeathMarker(self.directory.path)

    def start(self, rank: int | None) -> tuple[int, int]:
        rank = self._ranks.take() if rank is None else rank
        incarnation = self._ranks.start(rank)
        environment = worker_environment(self.directory, rank, incarnation) | self._accelerators.environment(rank)
        what = (self.arguments, environment, self.out / "logs", self._lifeline, self.inherit)
        template = self._template_for(environment)
        worker: WorkerProcess | WorkerProcesses
        if (nproc := self.directory.description.nproc) > 1:
            worker = WorkerProcesses(rank, incarnation, nproc, *what, template, run=self.run_id)
        else:
            worker = WorkerProcess(rank, incarnation, *what, template)
        self._living[rank] = worker
        for stream in worker.streams:
            self._selector.register(stream.descriptor, selectors.EVENT_READ, stream)
        return rank, incarnation

    def _template_for(self, environment: dict[str, str]) -> Template | None:
        """The process that workers are forked from, where system and user allow it; it starts with the first."""
        if self._template is None and sys.platform == "linux" and os.environ.get(FORK) != "0":
            self._template = borrow(environment)
        return self._template

    def poll(self, seconds: float) -> list[Ended]:
        for key, _ in self._selector.select(seconds):
            if not key.data.pump():  # readable, and nothing there: its end
                self._selector.unregister(key.fileobj)
        self._import_reader()
        return [self._collect(worker) for worker in list(self._living.values()) if worker.ended]

    def _import_reader(self) -> None:
        """Import what reads the final center while the workers train, not when they have ended."""
        if not (self.joined or self._importing) and Control.exists(self.directory.path):
            self._importing = True
            threading.Thread(target=import_module, args=(READER,), name="easgd-import", daemon=True).start()

    def _collect(self, worker: WorkerProcess | WorkerProcesses) -> Ended:
        del self._living[worker.rank]
        for stream in worker.streams:
            if stream.descriptor in self._selector.get_map():
                self._selector.unregister(stream.descriptor)
        return Ended(worker.rank, worker.incarnation, *worker.close())

    def mark_dead(self, rank: int, incarnation: int, *, keep_rank: bool) -> None:
        self._deaths.put(rank, incarnation)
        if rank in self._ranks.held:
            self._ranks.end(rank)
            if not keep_rank:
                self._ranks.release(rank)

    def changes(self) -> list[Change]:
        """Return the workers whose launcher was killed, and those that a signal has stopped or let go on.

        Launchers that join record the joins themselves.
        """
        found = [Change("death", *lost, "its launcher was killed") for lost in self._ranks.lost()]
        for worker in (process for some in self._living.values() for process in some.processes):
            if worker.paused != (worker.pid in self._paused):
                self._paused ^= {worker.pid}
                found.append(self._pause(worker))
        return found

    def _pause(self, worker: WorkerProcess) -> Change:
        if worker.pid not in self._paused:
            return Change("resumed", worker.rank, worker.incarnation, "")
        detail = f"a signal stopped it; kill -CONT {worker.pid} lets it go on, kill -KILL {worker.pid} ends it"
        say(f"worker {worker.rank} is paused: {detail}; what it holds of the center, others wait for")
        return Change("paused", worker.rank, worker.incarnation, detail)

    def alive(self) -> bool:
        return self.directory.alive

    def interrupt_all(self) -> None:
        for worker in list(self._living.values()):
            worker.interrupt()

    def kill_all(self) -> None:
        for worker in list(self._living.values()):
            worker.kill()

    def reader(self) -> SharedMemoryReader:
        from easgd.engines.local.reader import SharedMemoryReader

        return SharedMemoryReader(self.directory.path)

    def final_centers(self) -> dict[str, dict[str, Tensor]]:
        run = self.directory.path
        folders = {DEFAULT_CENTER: run, **{folder.name: folder for folder in sorted((run / CENTERS).glob("*"))}}
        found = {name: folder for name, folder in folders.items() if Control.exists(folder)}
        if not found:
            return {}
        read_center = import_module(READER).read_center
        if self.directory.description.history:
            for folder in found.values():
                import_module(RECORDING).end(folder)
        return {name: read_center(*(found[part] for part in parts)) for name, parts in by_model(found).items()}

    def close(self) -> None:
        if hasattr(self, "_deaths"):
            self._deaths.close()
            if self._template is not None:
                give_back(self._template)
            self._selector.close()
            self._lifeline.close()
            self._ranks.close()


class DeathMarker:
    """Marks workers dead in the run's shared memory, on a thread of its own.

    A worker that was stopped, not killed, may hold the control lock for a while; the launcher must not wait for it.
    """

    def __init__(self, run: Path) -> None:
        self.run = run
        self._dead: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="easgd-death-marker", daemon=True)
        self._thread.start()

    def put(self, rank: int, incarnation: int) -> None:
        """Have a worker marked dead, so that the moving rate follows the living."""
        self._dead.put((rank, incarnation))

    def _work(self) -> None:
        while (dead := self._dead.get()) is not None:
            mark_dead(self.run, *dead)

    def close(self) -> None:
        """Wait until all are marked."""
        self._dead.put(None)
        self._thread.join()
