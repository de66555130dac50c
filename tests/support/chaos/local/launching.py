"""A launcher's workers on a simulated machine: ranks and control words are the engine's, processes are simulated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos.local.worker import LocalWorker
from chaos.scheduler import Process
from easgd.engines.local.control import mark_dead, origin
from easgd.engines.local.ranks import Ranks
from easgd.launch.backend import Change, Ended
from easgd.runtime import threading, time

if TYPE_CHECKING:
    from chaos.local.simulation import LocalSimulation


class SimBackend:
    """In the place of `LocalBackend`."""

    where, run_id, event_log = "", "run", None

    def __init__(self, simulation: LocalSimulation, joined: bool) -> None:
        self.simulation, self.joined = simulation, joined
        self.out: Path = simulation.run_folder
        self.mine: list[LocalWorker] = []

    def open(self) -> None:
        self._ranks = Ranks(self.out)
        # As `DeathMarker`: a stopped worker may hold the control lock, and the launcher must not wait for it.
        self._deaths = threading.ThreadPoolExecutor(1)

    def start(self, rank: int | None) -> tuple[int, int]:
        rank = self._ranks.take() if rank is None else rank
        worker = LocalWorker(self.simulation, rank, self._ranks.start(rank))
        self.mine.append(worker)
        self.simulation.workers.append(worker)
        return worker.rank, worker.incarnation

    def poll(self, seconds: float) -> list[Ended]:
        time.sleep(seconds)
        ended = [worker for worker in self.mine if not worker.living and not worker.reported]
        for worker in ended:
            worker.reported = True
        return [Ended(w.rank, w.incarnation, -9 if w.killed else 0, "simulated") for w in ended]

    def mark_dead(self, rank: int, incarnation: int, *, keep_rank: bool) -> None:
        self._deaths.submit(mark_dead, self.out, rank, incarnation)
        if rank in self._ranks.held:
            self._ranks.end(rank)
            if not keep_rank:
                self._ranks.release(rank)

    def changes(self) -> list[Change]:
        return [Change("death", *lost, "its launcher was killed") for lost in self._ranks.lost()]

    def alive(self) -> bool:
        return not self.simulation.launchers[0].ended

    def began(self) -> float | None:
        return origin(self.out)

    def signal(self, rank: int, number: int) -> None:
        raise AssertionError("faults are the simulation's")

    def interrupt_all(self) -> None:
        self.kill_all()

    def kill_all(self) -> None:
        for worker in self.mine:
            worker.kill()

    def reader(self) -> Any:
        raise AssertionError("the simulation observes")

    def final_centers(self) -> dict[str, Any]:
        return {}

    def close(self) -> None:
        self._deaths.shutdown(wait=True)
        self._ranks.close()


class LauncherProcess:
    """A launcher in a process of its own: the run's, or one that joined."""

    def __init__(self, name: str, process: Process, backend: SimBackend) -> None:
        self.name, self.process, self.backend = name, process, backend
        self.ended = False
