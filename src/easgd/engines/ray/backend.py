"""Workers as actors of a Ray cluster: a `Backend` of the launcher.

Ray places actors, reports their deaths, restarts those of the center, and ends them all with the launcher's process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from signal import SIGKILL
from typing import Any

from ray.exceptions import GetTimeoutError, RayActorError, RayError
from torch import Tensor

from easgd.engines.ray.actor_link import CoordinatorProxy
from easgd.engines.ray.calls import ray
from easgd.engines.ray.cluster import Cluster, connect
from easgd.engines.ray.final import final_centers
from easgd.engines.ray.output_receiver import OutputReceiver
from easgd.engines.ray.pauses import Pauses
from easgd.engines.ray.placement import place, plan_of
from easgd.engines.ray.private import ClusterStore
from easgd.engines.ray.running import RunningWorker, actor_name
from easgd.engines.ray.settings import Settings
from easgd.engines.ray.supervisor import RayCenterReader, Supervisor
from easgd.errors import SettingError, UnreachableError
from easgd.launch.backend import Change, Ended, RunRequest
from easgd.launch.event_log import EventLog, prepare
from easgd.launch.output import say
from easgd.launch.run_directory import OwnedRun, base, live_runs
from easgd.runtime import time

TOKEN = "ray-token"  # the name of a file, not a secret
CALL_SECONDS = 30.0
GONE_SECONDS = 0.4
START_PAUSE = 0.1
START_SECONDS = 300.0
"""How long processes may take to start. Alone it is seconds; on a busy machine that reads torch from a cold disk, more
than a minute."""


@contextmanager
def start_run(request: RunRequest) -> Iterator[RayBackend]:
    """Connect to the cluster and make a run directory on this machine: `--list` and `--join` find the run by it."""
    settings = Settings.of(request.options)
    with _connected(settings.address) as cluster:
        run = OwnedRun(request, ray=cluster.address)
        try:
            if token := os.environ.get("RAY_AUTH_TOKEN"):
                # For `--join` on this machine; the folder is this user's alone, and gone with the run.
                with open(os.open(run.path / TOKEN, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                    file.write(token)
            yield OwnedRayBackend(run, cluster, request, settings)
        finally:
            run.close()


@contextmanager
def join_run(reference: str, request: RunRequest) -> Iterator[RayBackend]:
    """Find a run: of this machine by its name alone, of a cluster elsewhere with the cluster's address."""
    settings = Settings.of(request.options)
    name, address, token = Path(reference).name, settings.address, None
    here = live_runs().get(name)
    if here is not None and here.ray is not None:
        address = address or here.ray
        path = base() / name / TOKEN
        token = path.read_text() if path.exists() else None
    if address in (None, "local"):
        raise SettingError(f"run {name!r} is not on this machine; give the cluster's address, --ray 10.0.0.1:6379")
    with _connected(address, token):
        yield RayBackend(name, request, settings)


@contextmanager
def _connected(address: str | None, token: str | None = None) -> Iterator[Cluster]:
    cluster = connect(None if address == "local" else address, token)
    try:
        yield cluster
    finally:
        cluster.close()


def _portable(target: Sequence[Any]) -> list[Any]:
    """Add its text to a script: other machines need not have the file."""
    kind, *rest = target
    if kind != "script":
        return list(target)
    path = Path(rest[0]).absolute()
    return [kind, str(path), path.read_bytes(), *rest[1:]]


def _started(call: Callable[[], Any], done: Callable[[Any], bool] = lambda answer: True) -> Any:
    """Return the first answer of a coordinator that may still be starting, or have to be started again."""
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            if done(answer := ray.get(call(), timeout=max(1.0, end - time.monotonic()))):
                return answer
        except (GetTimeoutError, RayActorError) as error:
            problem: Exception | None = error
        else:
            problem = None
        if time.monotonic() > end:
            hint = f"within {START_SECONDS:g} s; `ray status` shows its load"
            raise SettingError(f"the cluster has not started the run's coordinator {hint}") from problem
        time.sleep(START_PAUSE)


class RayBackend:
    """The workers that one launcher adds to a run of another. They write their output to the run's owner."""

    joined = True
    where = ""
    event_log: EventLog | None = None

    def __init__(self, run_id: str, request: RunRequest, settings: Settings) -> None:
        self.run_id, self.request, self.settings = run_id, request, settings
        self.out = Path(".")
        self.target = _portable(request.target)
        self._living: dict[Any, RunningWorker] = {}  # by the references of its ranks' ends
        self._unreported: list[tuple[int, int, bool]] = []  # deaths that the coordinator has not acknowledged

    def open(self) -> None:
        self.coordinator = CoordinatorProxy(self.run_id).actor
        # None: the run's owner has not begun it yet.
        self.plan = _started(self.coordinator.describe.remote, lambda plan: plan is not None)
        self._cpus = self._cpus_each()

    def _cpus_each(self) -> float:
        """Return 1 where there are enough processors, else 0: the workers share, and Ray must not wait for more."""
        have, free = (of().get("CPU", 0.0) for of in (ray.cluster_resources, ray.available_resources))
        workers, nproc = self.request.workers, self.plan["nproc"]
        room = sum(node["Resources"].get("CPU", 0.0) // nproc for node in ray.nodes() if node["Alive"])
        if free >= workers * nproc and room >= workers:  # a group is on one node
            return 1.0
        kind = "processes" if nproc > 1 else "workers"
        say(f"{workers * nproc} {kind} share the {have:g} processors of the cluster, {free:g} of which are free")
        return 0.0

    def start(self, rank: int | None) -> tuple[int, int]:
        rank, incarnation = CoordinatorProxy(self.run_id).assign_rank(rank)
        worker = RunningWorker(
            self.coordinator, self.plan, self.target, rank, incarnation, cpus=self._cpus, gpus=self.settings.gpus
        )
        self._living.update(dict.fromkeys(worker.references, worker))
        return rank, incarnation

    def poll(self, seconds: float) -> list[Ended]:
        ended, _ = ray.wait(list(self._living), num_returns=1, timeout=seconds) if self._living else ([], [])
        self._report_deaths()
        return [found for reference in ended if (found := self._collect(reference)) is not None]

    def _collect(self, reference: Any) -> Ended | None:
        worker = self._living.pop(reference)
        if (end := worker.end_of(reference)) is not None:
            for other in worker.references:
                self._living.pop(other, None)
        return end

    def mark_dead(self, rank: int, incarnation: int, *, keep_rank: bool) -> None:
        self._unreported.append((rank, incarnation, keep_rank))
        self._report_deaths()

    def _report_deaths(self) -> None:
        """Tell the coordinator; one that is being restarted, perhaps after the loss of the same node, is told later."""
        while self._unreported:
            try:
                ray.get(self.coordinator.mark_dead.remote(*self._unreported[0]), timeout=CALL_SECONDS)
            except RayError:
                return
            self._unreported.pop(0)

    def changes(self) -> list[Change]:
        return []

    def began(self) -> float | None:
        return None  # only the run's owner follows a plan of faults

    def signal(self, rank: int, number: int) -> None:
        """Kill a worker, wherever it is; Ray sends no other signal."""
        assert number == SIGKILL
        for worker in {worker for worker in self._living.values() if worker.rank == rank}:
            worker.kill()

    def alive(self) -> bool:
        """Whether the run's coordinator exists: one that is being restarted keeps its name."""
        try:
            ray.get_actor("coordinator", namespace=self.run_id)
        except (ValueError, RayError):
            return False
        return True

    def interrupt_all(self) -> None:
        # Its own workers alone: the run goes on without them.
        mine = [(worker.rank, worker.incarnation) for worker in set(self._living.values())]
        with suppress(RayError):
            ray.get(self.coordinator.stop.remote(mine), timeout=CALL_SECONDS)

    def kill_all(self) -> None:
        for worker in set(self._living.values()):
            worker.kill()

    def reader(self) -> RayCenterReader:
        raise AssertionError("only the run's owner observes the center")

    def final_centers(self) -> dict[str, dict[str, Tensor]]:
        return {}

    def close(self) -> None:
        self.kill_all()


class OwnedRayBackend(RayBackend):
    """A run of one's own: beside the workers, its coordinator, the center's shards and their supervisor."""

    joined = False

    def __init__(self, run: OwnedRun, cluster: Cluster, request: RunRequest, settings: Settings) -> None:
        super().__init__(run.id, request, settings)
        self.directory, self.cluster, self.out = run, cluster, run.out
        nodes = len(cluster.nodes())
        self.where = f"the {nodes} nodes of the Ray cluster" if nodes > 1 else "Ray"
        self.where += f" at {cluster.address}"
        self.event_log = EventLog(self.out, self._zero)
        self.supervisor: Supervisor | None = None
        self._actors: list[Any] = []
        self._output = OutputReceiver(self.out)
        self._own: set[tuple[int, int]] = set()
        self._foreign: set[tuple[int, int]] = set()
        self._missing: dict[tuple[int, int], float] = {}  # since when a worker that holds a rank has no actor
        self._seen: set[tuple[int, int]] = set()
        self._gone: set[tuple[int, int]] = set()
        self._pauses = Pauses()

    def _zero(self) -> float:
        """Return when training began, on this machine's monotonic clock; before that, the run's start."""
        return self.began() or time.monotonic() - (time.time() - self.directory.description.started)

    def began(self) -> float | None:
        memberships = self.supervisor.opened().values() if self.supervisor is not None else ()
        began = [membership["began"] for membership in memberships if membership["began"] is not None]
        return time.monotonic() - (time.time() - min(began)) if began else None

    def open(self) -> None:
        prepare(self.out, resumed=self.request.elapsed is not None)
        self._mark = self.out / f".{self.run_id}"  # tells workers that this folder is on their machine
        self._mark.touch()
        if history := self.directory.description.history:
            Path(history).mkdir(parents=True, exist_ok=True)
        self.plan = plan_of(self.directory, self.settings)
        self.coordinator, shards = place(self.run_id, self.cluster, self.request.workers, self.settings)
        self._actors = [*shards, self.coordinator]
        _started(partial(self.coordinator.begin.remote, self.plan, shards))
        assert self.event_log is not None
        self.supervisor = Supervisor(self.coordinator, shards, self.out, self.event_log, self.settings.interval)
        self.supervisor.start()
        self._cpus = self._cpus_each()

    def start(self, rank: int | None) -> tuple[int, int]:
        rank, incarnation = super().start(rank)
        self._own.add((rank, incarnation))
        return rank, incarnation

    def poll(self, seconds: float) -> list[Ended]:
        ended = super().poll(seconds)
        self._relay_output()
        return ended

    def mark_dead(self, rank: int, incarnation: int, *, keep_rank: bool) -> None:
        super().mark_dead(rank, incarnation, keep_rank=keep_rank)
        if not self._living and self.supervisor is not None:
            # All may have come and gone since the supervisor last asked, and the observer looks at the center now.
            with suppress(RayError):
                self.supervisor.renew()

    def _relay_output(self) -> None:
        with suppress(RayError):
            self._output.deliver(ray.get(self.coordinator.drain.remote(), timeout=CALL_SECONDS))

    def changes(self) -> list[Change]:
        """Compare the ranks that are held with the actors that exist: joined launchers cannot record here."""
        assert self.supervisor is not None
        found = []
        for rank, incarnation in set(self.supervisor.copy["held"].items()) - self._own - self._gone:
            worker = (rank, incarnation)
            if worker not in self._foreign:
                self._foreign.add(worker)
                found.append(Change("join", rank, incarnation, "by another launcher"))
            try:
                ray.get_actor(actor_name(rank, incarnation), namespace=self.run_id)
                self._seen.add(worker)
            except ValueError:
                # A launcher takes the rank first and makes the actor then, which may take long on a slow link. One that
                # has left is still reported by its own launcher: only the second time counts.
                existed = worker in self._seen or self._has_joined(*worker)
                patience = GONE_SECONDS if existed else START_SECONDS
                if time.monotonic() - self._missing.setdefault(worker, time.monotonic()) > patience:
                    self._gone.add(worker)
                    found.append(Change("death", rank, incarnation, "its launcher is gone"))
        return found + self._pauses.changes(self.supervisor.copy)

    def _has_joined(self, rank: int, incarnation: int) -> bool:
        assert self.supervisor is not None
        memberships = self.supervisor.copy["memberships"].values()
        return any(membership["incarnations"].get(rank) == incarnation for membership in memberships)

    def interrupt_all(self) -> None:
        with suppress(RayError):
            ray.get(self.coordinator.stop.remote(), timeout=CALL_SECONDS)

    def reader(self) -> RayCenterReader:
        assert self.supervisor is not None
        return RayCenterReader(self.supervisor)

    def final_centers(self) -> dict[str, dict[str, Tensor]]:
        assert self.supervisor is not None
        self.supervisor.close()
        with suppress(RayError, UnreachableError):
            self.supervisor.check()
        return final_centers(self.supervisor)

    def _end_history(self) -> None:
        if self.directory.description.history:
            shards = [actor for actor in self._actors if actor is not self.coordinator]
            with suppress(RayError):
                ray.get([shard.end_record.remote() for shard in shards], timeout=CALL_SECONDS)

    def close(self) -> None:
        """Save the center, relay the last output, end all actors."""
        super().close()
        if self._actors:
            self._relay_output()
            self._output.close()
            if self.supervisor is not None:
                self.supervisor.close()
                with suppress(Exception):
                    self.supervisor.save()
            self._end_history()
            for actor in self._actors:
                ray.kill(actor)
            ClusterStore(self.run_id).clear()
            with suppress(OSError):
                self._mark.unlink()
