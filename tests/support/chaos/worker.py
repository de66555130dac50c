"""A simulated worker: the real client and exchange around a vector of parameters, with noise for gradients."""

from __future__ import annotations

import pickle
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

from chaos.actors import Cluster, Ref, dead
from chaos.outcome import Witness
from chaos.scenario import Scenario
from chaos.scheduler import Scheduler
from chaos.training import Training
from easgd.engines.ray.client import RayCenterClient
from easgd.engines.ray.connect import connect
from easgd.engines.ray.running import actor_name
from easgd.errors import CenterLostError, UnreachableError
from easgd.launch.backend import Ended
from easgd.runtime import threading


class Workers:
    """All workers that ever were."""

    def __init__(self, scheduler: Scheduler, cluster: Cluster, scenario: Scenario, witness: Witness) -> None:
        self.scheduler, self.cluster, self.scenario, self.witness = scheduler, cluster, scenario, witness
        self.all: list[SimWorker] = []
        self.quiet = threading.Event()
        """Set when workers that wait for a quiet moment may go on to their end."""

    def living(self) -> list[SimWorker]:
        return [worker for worker in self.all if worker.process.alive and worker.state != "ended"]

    def faithful(self) -> set[int]:
        """Ranks of which one worker was started, which was never killed and has left nothing half done."""
        ranks = [worker.rank for worker in self.all]
        return {w.rank for w in self.all if ranks.count(w.rank) == 1 and not w.killed and not w.half_done}


class SimWorker:
    """In the place of `RunningWorker`: one worker in a process of its own."""

    workers: Workers

    def __init__(
        self, coordinator: Any, plan: dict[str, Any], target: Any, rank: int, incarnation: int, *, cpus: float,
        gpus: float,
    ) -> None:  # fmt: skip
        workers = self.workers
        self.scheduler, self.cluster, self.scenario = workers.scheduler, workers.cluster, workers.scenario
        self.rank, self.incarnation = rank, incarnation
        self.name = actor_name(rank, incarnation)
        self.process = self.scheduler.process(self.name)
        self.launcher = self.scheduler.me.process
        self.end = Ref(self.scheduler)
        self.references = [self.end]
        self.state, self.killed = "starting", False
        self.received: Tensor | None = None
        self.client: RayCenterClient | None = None
        workers.all.append(self)
        self.cluster.names.add(self.name)
        self.scheduler.later(self.scheduler.random.uniform(0.0, 1.0), self._start)

    def _start(self) -> None:
        self.scheduler.spawn(self.process, self._main, "main")

    @property
    def half_done(self) -> bool:
        """Whether it has ended with an exchange that was not answered: some shards may have it."""
        return self.state == "ended" and self.client is not None and bool(self.client._unanswered)

    def kill(self) -> None:
        """SIGKILL; the launcher hears of it in its own time."""
        if self.process.alive and self.state != "ended":
            self.killed = True
            self.scheduler.note(f"{self.name} is killed ({self.state})")
            self.scheduler.kill(self.process)
            self._gone(None, dead(self.name))

    def _gone(self, value: bytes | None, error: Exception | None) -> None:
        self.cluster.names.discard(self.name)
        self.scheduler.later(self.scheduler.random.uniform(0.0, 0.5), partial(self.end.settle, value, error))

    def end_of(self, reference: Ref) -> Ended:
        """As `RunningWorker.end_of`."""
        code = -9 if reference.error is not None else int(reference.result())
        return Ended(self.rank, self.incarnation, code, "simulated")

    # in its own process ----------------------------------------------------------------------------------------

    def _main(self) -> None:
        code = 1
        try:
            self._train()
            code = 0
        except CenterLostError as error:
            self.scheduler.note(f"{self.name} gives up: {error}")
            if "later incarnation" in str(error):
                self.workers.witness.wrong(f"{self.name} lives, and was taken for dead")
        except (UnreachableError, TimeoutError) as error:
            self.scheduler.note(f"{self.name} gives up: {error}")
        self.state = "ended"
        self._gone(pickle.dumps(code), None)

    def _train(self) -> None:
        scenario = self.scenario
        self.training = training = Training(scenario, self.rank, self.incarnation)
        self.client = client = connect("run", training.request(compression=scenario.compression))
        training.join(client)
        self.state = "joined"
        training.gather(client)
        self.received = torch.zeros(scenario.size, dtype=torch.float64)
        self._observe(client)
        training.tie(client, scenario.overlap)
        training.steps(scenario.steps)
        if scenario.schedule == "async":
            self.state = "quiet"
            self.workers.quiet.wait()
            self.state = "joined"
            training.steps(2)
        training.exchange.close()
        with suppress(UnreachableError):
            client.leave_behind({}, {})
        if client._unanswered:
            self.received = None  # `leave` brings it to its end, and nobody subtracts the answer
        with suppress(UnreachableError):
            client.leave()

    def _observe(self, client: Any) -> None:
        """Add up what the center answers, and look at every scale."""
        ask, witness = client.exchange, self.workers.witness

        def exchange(message: Tensor | None, scale: float, fragment: int = 0) -> Tensor | None:
            if not 0.0 < scale <= 1.0:
                witness.wrong(f"{self.name}: the moving rate is {scale}")
            answer: Tensor | None = ask(message, scale, fragment)
            if answer is not None and self.scenario.method.is_elastic:
                cuts = self.scenario.fragments()[fragment]
                assert self.received is not None
                self.received[cuts[0] : cuts[1]] += answer
            return answer

        client.exchange = exchange
