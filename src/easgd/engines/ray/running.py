"""The actors of one worker: one, or one for each rank of a group, all of them on one node."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from easgd.engines.ray.worker_actor import WorkerActor
from easgd.launch.backend import Ended
from easgd.launch.output import say
from easgd.launch.process import describe_exit

GROUP_SECONDS = 120.0


def actor_name(rank: int, incarnation: int, member: int = 0) -> str:
    """The name of a worker's actor; the first rank of a group stands for it."""
    return f"worker-{rank}-{incarnation}{f'.{member}' if member else ''}"


class RunningWorker:
    """A worker that this launcher has started. It ends when any of its ranks fails, or all have ended."""

    def __init__(
        self, coordinator: Any, plan: dict[str, Any], target: Sequence[Any], rank: int, incarnation: int, *,
        cpus: float, gpus: float,
    ) -> None:  # fmt: skip
        self.rank, self.incarnation, self.nproc = rank, incarnation, int(plan["nproc"])
        self._what = (coordinator, plan, rank, incarnation)
        # The first rank reserves what the whole group needs; the others are put beside it and ask for nothing.
        self.actors = [self._actor(0, num_cpus=cpus * self.nproc, num_gpus=gpus, scheduling_strategy="SPREAD")]
        try:
            if self.nproc > 1:
                self._open_group()
            self.references = [actor.run.remote(*target) for actor in self.actors]
        except RayError as error:
            say(f"worker {rank}: its group does not start ({type(error).__name__})")
            self.references = [ray.put(1)]  # it has failed
        self._codes: dict[Any, int] = {}

    def _actor(self, member: int, **options: Any) -> Any:
        coordinator, plan, rank, incarnation = self._what
        actor_class = ray.remote(WorkerActor).options(
            max_restarts=0, max_concurrency=1, name=actor_name(rank, incarnation, member), namespace=plan["run"],
            **options,
        )  # fmt: skip
        return actor_class.remote(coordinator, plan, rank, incarnation, member)

    def _open_group(self) -> None:
        node, port, devices = ray.get(self.actors[0].open_group.remote(), timeout=GROUP_SECONDS)
        # Ray ignores the node of an actor that asks for no resource at all, so it asks for one byte.
        beside = {"num_cpus": 0, "memory": 1, "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False)}
        self.actors += [self._actor(member, **beside) for member in range(1, self.nproc)]
        ray.get([actor.enter_group.remote(port, devices) for actor in self.actors], timeout=GROUP_SECONDS)

    def end_of(self, reference: Any) -> Ended | None:
        """Take the end of one of its ranks; return the worker's end if it is that."""
        try:
            code = int(ray.get(reference))
            how = describe_exit(code)
        except RayError as error:
            code, how = -signal.SIGKILL, f"killed or lost with its node ({type(error).__name__})"
        self._codes[reference] = code
        if code == 0 and len(self._codes) < len(self.references):
            return None
        if code and self.nproc > 1:
            how = f"rank {self.references.index(reference)} of its {self.nproc}: {how}"
        self.kill()
        return Ended(self.rank, self.incarnation, code, how)

    def kill(self) -> None:
        """End all its actors."""
        for actor in self.actors:
            with suppress(RayError):
                ray.kill(actor)
