"""One simulated run from its launcher's start to its end, with the faults of its scenario."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from chaos import invariants, primitives
from chaos.actors import Cluster, Handle
from chaos.network import Network, Weather
from chaos.outcome import Outcome, PerProcess
from chaos.scenario import Fault, Scenario
from chaos.scheduler import Process, Scheduler
from chaos.sockets import HOST, SimSockets
from chaos.storage import SimDisk, SimStore
from chaos.witness import ClusterWitness, WitnessedShard
from chaos.worker import SimWorker, Workers
from easgd.engines.ray import (
    actor_link,
    backend,
    client,
    membership,
    shard,
    shard_actor,
    sockets,
    supervisor,
    updates,
)
from easgd.engines.ray.backend import OwnedRayBackend, RayBackend
from easgd.engines.ray.coordinator import Coordinator
from easgd.engines.ray.settings import Settings
from easgd.engines.ray.shard_actor import ShardActor
from easgd.launch.backend import RunRequest
from easgd.launch.launcher import Launcher
from easgd.runtime import threading, time

RUN = "run"
QUIET_SECONDS = 30.0
"""How long the run may take to agree about its members once the faults are over."""
SETTLED_SECONDS = 10.0
"""How long a message of before may still be on its way."""
VIRTUAL_SECONDS = 900.0


class InspectedBackend(OwnedRayBackend):
    """Ends the run's actors only when the director has looked at them."""

    before_close: Any

    def close(self) -> None:
        self.before_close()
        super().close()


class Simulation:
    """Builds the cluster, lets the faults happen, and asks `invariants` in the end."""

    def __init__(self, scenario: Scenario, out: Path) -> None:
        self.scenario, self.out = scenario, out
        self.scheduler = Scheduler(scenario.seed, deadline=VIRTUAL_SECONDS, preempt=scenario.preempt)
        self.network = Network(self.scheduler, scenario.weather)
        self.cluster = Cluster(self.scheduler, self.network)
        self.store, self.disk = SimStore(self.scheduler), SimDisk(self.scheduler)
        self.witness = ClusterWitness(self.scheduler.note)
        self.codes: list[int] = []
        self.launchers: list[Any] = []

    def run(self) -> Outcome:
        with self._installed():
            self.workers = Workers(self.scheduler, self.cluster, self.scenario, self.witness)
            self.inspected = threading.Event()
            SimWorker.workers, WitnessedShard.witness = self.workers, self.witness
            try:
                self.scheduler.run(self._direct)
            except Exception as error:
                self.witness.wrong(f"{type(error).__name__}: {error}")
        return Outcome.of(self.scenario, self.scheduler, self.witness)

    @contextmanager
    def _installed(self) -> Iterator[None]:
        """Put everything in its place that is not the engine's own."""
        snapshot = actor_link.snapshot

        def witnessed(*args: Any, **options: Any) -> list[dict[str, Any]]:
            states = snapshot(*args, **options)
            self.witness.snapshot(states, self.workers.faithful())
            return states

        with ExitStack() as stack:
            stack.enter_context(primitives.installed(self.scheduler))
            stack.enter_context(self.cluster.installed())
            stack.enter_context(SimSockets(self.scheduler, self.network).installed())
            for module, name, value in (
                (membership, "LEAST_SHARD", 1024),  # small vectors on several shards
                (shard, "LEAST", 1024),  # small messages in several parts
                (updates, "CHUNK", 512),
                (sockets, "CHUNK", 512),
                (shard_actor, "ray", SimpleNamespace(util=SimpleNamespace(get_node_ip_address=lambda: HOST))),
                (client, "_sequences", PerProcess(self.scheduler, "sequences", itertools.count)),
                (actor_link, "snapshot", witnessed),
                (shard_actor, "Shard", WitnessedShard),
                (supervisor, "checkpoint", self.disk),
                (supervisor, "say", self._say),
                (backend, "say", self._say),
                (backend, "RunningWorker", SimWorker),
                (backend, "plan_of", self._plan),
                (backend, "place", self._place),
                (backend, "ClusterStore", lambda run: SimpleNamespace(clear=lambda: None)),
            ):
                stack.enter_context(patch.object(module, name, value))
            stack.enter_context(patch("easgd.launch.launcher.say", self._say))
            stack.enter_context(patch("easgd.launch.launcher.handle_signals", nullcontext))
            stack.enter_context(patch("easgd.launch.launcher._POLL_SECONDS", 0.5))  # each is a call, and costs a switch
            yield

    def _say(self, message: str) -> None:
        self.scheduler.note(f"says: {message}")

    # in the place of Ray and of the machine --------------------------------------------------------------------

    def _plan(self, run: Any, settings: Settings) -> dict[str, Any]:
        return {"run": RUN, "nproc": 1, "secret": self.scenario.secret, "workers": self.scenario.workers}

    def _place(self, run: str, cluster: Any, workers: int, settings: Settings) -> tuple[Any, list[Any]]:
        make = self.cluster.actor
        coordinator = make("coordinator", lambda: Coordinator(self.store, lambda k: Handle(f"shard-{k}")), True)
        return coordinator, [make(f"shard-{k}", ShardActor) for k in range(self.scenario.shards)]

    # the run ---------------------------------------------------------------------------------------------------

    def _direct(self) -> None:
        scheduler = self.scheduler
        scheduler.note(str(self.scenario))
        for fault in self.scenario.faults:
            scheduler.later(fault.at, lambda fault=fault: self._happen(fault))
        self._launch("launcher", self.scenario.workers, owner=True)
        last = max((fault.at + fault.seconds for fault in self.scenario.faults), default=0.0)
        scheduler.sleep(last)
        self._wait_for_quiet()
        self._clear_up()
        if self.scenario.schedule == "async":
            self._agree()
        self.workers.quiet.set()
        while not self.launchers[0].closing:
            scheduler.sleep(0.5)
        self._agree()
        self.inspected.set()
        while not all(entry.thread.ended for entry in self.launchers):
            scheduler.sleep(0.5)
        self.witness.faults += invariants.accounts(self)

    def _agree(self) -> None:
        """Wait until all agree about the members; they must before long, and still do a while later."""
        end = self.scheduler.now + QUIET_SECONDS
        while self.scheduler.now < end and invariants.agreement(self):
            self.scheduler.sleep(1.0)
        self.scheduler.sleep(SETTLED_SECONDS)
        self.witness.faults += invariants.agreement(self)

    def _wait_for_quiet(self) -> None:
        """Wait until every worker has done its steps: waits, or has ended, and nobody is about to be started again."""
        still = 0
        while still < 8:
            self.scheduler.sleep(0.5)
            busy = [worker for worker in self.workers.living() if worker.state != "quiet"]
            idle = not busy and (self.workers.all or self.launchers[0].closing)
            still = still + 1 if idle else 0

    def _clear_up(self) -> None:
        """Nothing goes wrong from here on."""
        self.network.weather = Weather()
        self.network._cut.clear()
        self.disk.full = False
        self.scheduler.note("the faults are over")

    def _launch(self, name: str, workers: int, owner: bool) -> None:
        """Start a launcher in a process of its own: the run's, or one that joins."""
        process = self.scheduler.process(name)
        request = RunRequest(["function", None, ()], workers, RUN, self.out)
        settings = Settings(shards=self.scenario.shards, interval=self.scenario.interval)
        entry = SimpleNamespace(name=name, process=process, closing=False, backend=None)

        def main() -> None:
            if owner:
                run = SimpleNamespace(
                    id=RUN, out=self.out, description=SimpleNamespace(started=time.time(), history="")
                )
                nodes = SimpleNamespace(nodes=lambda: [{}], address="simulated")
                backend: RayBackend = InspectedBackend(run, nodes, request, settings)  # type: ignore[arg-type]
                backend.before_close = lambda: setattr(entry, "closing", True) or self.inspected.wait()
            else:
                backend = RayBackend(RUN, request, settings)
            entry.backend = backend
            self.codes.append(Launcher(backend, workers, restarts=self.scenario.restarts).run())

        entry.thread = self.scheduler.spawn(process, main, "main")
        self.launchers.append(entry)

    # faults ----------------------------------------------------------------------------------------------------

    def _happen(self, fault: Fault) -> None:
        if self.launchers[0].closing:
            return
        self.scheduler.note(str(fault))
        living = self.workers.living()
        worker = living[fault.who % len(living)] if living else None
        shard = self.cluster.actors.get(f"shard-{fault.who % self.scenario.shards}")
        if fault.what == "kill worker" and worker is not None:
            worker.kill()
        elif fault.what == "kill shard" and shard is not None and self.disk.saved:  # before, nobody has its value
            shard.crash(fault.seconds)
        elif fault.what == "kill coordinator" and "coordinator" in self.cluster.actors:
            self.cluster.actors["coordinator"].crash(fault.seconds)
        elif fault.what in ("cut", "one way"):
            self._cut(fault)
        elif fault.what == "pause":
            self._pause(fault)
        elif fault.what == "join" and "coordinator" in self.cluster.actors:
            self._launch(f"joiner-{len(self.launchers)}", 1, owner=False)
        elif fault.what == "kill joiner" and len(self.launchers) > 1:
            self._kill_launcher(self.launchers[1 + fault.who % (len(self.launchers) - 1)].process)
        elif fault.what == "fill disk":
            self.disk.full = True
            self.scheduler.later(fault.seconds, lambda: setattr(self.disk, "full", False))

    def _kill_launcher(self, process: Process) -> None:
        """Kill a launcher that has joined; Ray ends its workers with it."""
        self.scheduler.note(f"{process} is killed")
        self.scheduler.kill(process)
        for worker in self.workers.living():
            if worker.launcher is process:
                worker.kill()

    def _names(self) -> list[str]:
        return [*self.cluster.actors, *(worker.name for worker in self.workers.living()), "launcher"]

    def _cut(self, fault: Fault) -> None:
        names = self._names()
        a, b = names[fault.who % len(names)], names[fault.other % len(names)]
        self.scheduler.note(f"cut: {a} → {b}")
        self.network.cut(a, b, fault.seconds)
        if fault.what == "cut":
            self.network.cut(b, a, fault.seconds)

    def _pause(self, fault: Fault) -> None:
        actors = [actor.process for actor in self.cluster.actors.values() if actor.process is not None]
        processes = [*actors, *(worker.process for worker in self.workers.living())]
        if processes:
            process = processes[fault.who % len(processes)]
            self.scheduler.note(f"paused: {process}")
            self.scheduler.pause(process, True)
            self.scheduler.later(fault.seconds, lambda: self.scheduler.pause(process, False))


def simulate(scenario: Scenario) -> Outcome:
    """Run a scenario."""
    with tempfile.TemporaryDirectory(prefix="chaos-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as out:
        return Simulation(scenario, Path(out)).run()
