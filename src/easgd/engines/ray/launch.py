"""The launcher of a run on a cluster: makes the coordinator, the center's shards and the workers, and watches them.

It takes no part in the training. Ray places actors, sees them die and restarts those of the center; what a worker's
end means is decided here, as on one machine:

    exit code 0                      the worker has left
    anything else                    it died: told to the coordinator, recorded, running again if restarts are left
    after Ctrl-C, or the run's end   it was stopped

With the launcher its actors end: Ray sees to that, however it ends.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from easgd.engines.local.process import describe_exit
from easgd.engines.ray.actor_link import CoordinatorProxy
from easgd.engines.ray.cluster import Cluster
from easgd.engines.ray.output_receiver import OutputReceiver
from easgd.engines.ray.placement import place, plan_of
from easgd.engines.ray.settings import Settings
from easgd.engines.ray.supervisor import RayCenterReader, Supervisor
from easgd.engines.ray.worker_actor import WorkerActor
from easgd.launch.event_log import EventLog, prepare
from easgd.launch.output import say
from easgd.signals import handle_signals

TURN, SWEEP, CALL_SECONDS = 0.1, 1.0, 30.0
BAD_INPUT = 2


@dataclass
class RunningActor:
    """A worker as its launcher sees it."""

    rank: int
    incarnation: int
    actor: Any


class RayLauncher:
    """Runs `workers` seats of one target, in a run of its own or in one that it joins (`join`)."""

    def __init__(
        self, cluster: Cluster, run: str, out: Path, target: Sequence[Any], workers: int, *,
        schedule: str | None = None, settings: Settings, join: bool = False, started: float | None = None,
        elapsed: float | None = None,
    ) -> None:  # fmt: skip
        self.cluster, self.run_id, self.out, self.target, self.workers = cluster, run, out, target, workers
        self.schedule, self.settings, self.joins = schedule, settings, join
        self.started, self.elapsed = time.time() if started is None else started, elapsed
        self.exit_codes: dict[int, int] = {}
        self.signal: int | None = None
        self.center: Any = None
        self.supervisor: Supervisor | None = None
        self._failure = 0
        self._living: dict[Any, RunningActor] = {}  # by the reference of its end
        self._restarted: dict[int, int] = {}
        self._output = OutputReceiver(out)
        self._presses, self._stopping, self._deadline, self._next_sweep = 0, False, float("inf"), 0.0
        self._foreign: dict[int, int] = {}
        self._unreported_deaths: list[tuple[int, int, bool]] = []

    def run(self) -> int:
        """Start everything, stay until all workers have ended, return the exit code."""
        with handle_signals(self._pressed):
            try:
                self._start_all()
                while self._living:
                    self._turn()
            finally:
                self._kill_all()
        return self._verdict()

    # starting ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make the coordinator and the shards, or find those of the run that is joined; `close` undoes it."""
        if self.joins:
            self.coordinator = CoordinatorProxy(self.run_id).actor
            self.plan = self._ask(self.coordinator.describe.remote())
            return
        prepare(self.out, resumed=self.elapsed is not None)
        (self.out / f".{self.run_id}").touch()
        self._event_log = EventLog(self.out, self._zero)
        self.plan = plan_of(
            self.run_id, self.out, self.workers, self.schedule, self.settings, self.started, self.elapsed or 0.0
        )
        self.coordinator, self.shard_actors = place(self.run_id, self.cluster, self.workers, self.settings)
        self._ask(self.coordinator.begin.remote(self.plan, self.shard_actors))
        self.supervisor = Supervisor(
            self.coordinator, self.shard_actors, self.out, self._event_log, self.settings.interval
        )
        self.supervisor.start()

    @property
    def seen(self) -> RayCenterReader:
        """The center, for whoever watches."""
        assert self.supervisor is not None
        return RayCenterReader(self.supervisor)

    def _zero(self) -> float:
        """The moment at which training began, on this machine's monotonic clock; before that, the run's start."""
        memberships = self.supervisor.opened().values() if self.supervisor is not None else ()
        began = min(
            (membership["began"] for membership in memberships if membership["began"] is not None), default=self.started
        )
        return time.monotonic() - (time.time() - float(began))

    def _start_all(self) -> None:
        self._share = self._cpus()
        for _ in range(self.workers):
            if self._presses:
                break
            rank = self._start(None)
            if self.joins:
                say(f"joined run {self.run_id} as worker {rank}")

    def _cpus(self) -> float:
        """A processor each where there are enough; else they share, and Ray must not wait for more."""
        have, free = (of().get("CPU", 0.0) for of in (ray.cluster_resources, ray.available_resources))
        if free >= self.workers:
            return 1.0
        say(f"{self.workers} workers share the {have:g} processors of the cluster, {free:g} of which are free")
        return 0.0

    def _start(self, rank: int | None) -> int:
        rank, incarnation = CoordinatorProxy(self.run_id).assign_rank(rank)
        options = {"num_cpus": self._share, "num_gpus": self.settings.gpus, "max_restarts": 0, "max_concurrency": 1}
        name = f"actor_class-{rank}-{incarnation}"
        actor_class = ray.remote(WorkerActor).options(
            **options, name=name, namespace=self.run_id, scheduling_strategy="SPREAD"
        )  # fmt: skip
        actor = actor_class.remote(self.coordinator, self.plan, rank, incarnation)
        self._living[actor.run.remote(*self.target)] = RunningActor(rank, incarnation, actor)
        return rank

    # watching ------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Pass on output, look after ends, stop if asked to."""
        ended, _ = ray.wait(list(self._living), num_returns=1, timeout=TURN)
        for reference in ended:
            self._mark_dead(reference)
        self._mark_all_dead()
        if not self.joins:
            self._pass_on()
        if time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + SWEEP
            self._sweep()
        self._obey()

    def _pass_on(self) -> None:
        with suppress(RayError):
            self._output.deliver(ray.get(self.coordinator.drain.remote(), timeout=CALL_SECONDS))

    def _mark_dead(self, reference: Any) -> None:
        """A worker has ended: record it, tell the coordinator, actor_class it again or give its rank back."""
        running = self._living.pop(reference)
        rank = running.rank
        try:
            code, how = (value := int(ray.get(reference))), describe_exit(value)
        except RayError as error:
            code, how = -signal.SIGKILL, f"killed or lost with its node ({type(error).__name__})"
        ray.kill(running.actor)
        self.exit_codes[rank] = code
        restarts = self._restarted.get(rank, 0)
        again = bool(code and not self._stopping and restarts < self.settings.restarts and code != BAD_INPUT)
        self._write("stopped" if self._stopping else "death" if code else "leave", rank, how)
        self._unreported_deaths.append((rank, running.incarnation, again))
        self._mark_all_dead()
        if not code or self._stopping:
            return
        say(f"worker {rank} died ({how}); {len(self._living)} go on")
        if not again:
            self._failure = self._failure or (code if code > 0 else 1)
            return
        self._restarted[rank] = restarts + 1
        self._start(rank)
        detail = f"restart {restarts + 1} of {self.settings.restarts}"
        self._write("restart", rank, detail)
        say(f"worker {rank} starts again ({detail})")

    def _mark_all_dead(self) -> None:
        """Tell the coordinator; one that is being restarted, perhaps on the same lost node, hears it later."""
        while self._unreported_deaths:
            try:
                ray.get(self.coordinator.mark_dead.remote(*self._unreported_deaths[0]), timeout=CALL_SECONDS)
            except RayError:
                return
            self._unreported_deaths.pop(0)

    def _sweep(self) -> None:
        """Look beyond the own workers: joined ones whose launcher is gone; or, having joined, the run's own end."""
        if self.joins:
            try:
                ray.get(self.coordinator.describe.remote(), timeout=CALL_SECONDS)
            except RayError:
                say(f"run {self.run_id} has ended; stopping")
                self._kill_all()
            return
        copy = self.supervisor.copy if self.supervisor is not None else None
        own = {running.rank for running in self._living.values()}
        for rank, incarnation in (copy or {}).get("held", {}).items():
            if rank in own or rank in self._restarted or rank < self.workers:
                continue
            if rank not in self._foreign:
                self._foreign[rank] = incarnation
                self._write("join", rank, "by another launcher")
            try:
                ray.get_actor(f"actor_class-{rank}-{incarnation}", namespace=self.run_id)
            except ValueError:
                self._write("death", rank, "its launcher is gone")
                self._foreign.pop(rank, None)
                with suppress(RayError):
                    ray.get(self.coordinator.mark_dead.remote(rank, incarnation), timeout=CALL_SECONDS)

    # stopping ------------------------------------------------------------------------------------------------

    def _pressed(self, number: int, frame: Any) -> None:
        self._presses += 1
        self.signal = self.signal or number

    def _obey(self) -> None:
        """Stop as the signals so far and the grace period ask."""
        if self.signal is not None and not self._stopping:
            say(f"{signal.Signals(self.signal).name}: stopping; once more to kill at once")
            self._stopping = True
            self._deadline = time.monotonic() + self.settings.grace
            if self.joins:
                self._kill_all()
            else:
                with suppress(RayError):
                    ray.get(self.coordinator.stop.remote(), timeout=CALL_SECONDS)
        if self._presses > 1 or time.monotonic() > self._deadline:
            self._kill_all()

    def _kill_all(self) -> None:
        self._stopping = True
        for running in self._living.values():
            ray.kill(running.actor)

    def close(self) -> None:
        """Save the center, pass on the last words, leave nothing behind."""
        self._kill_all()
        if self.joins or not hasattr(self, "coordinator"):
            return
        self._pass_on()
        self._output.close()
        if self.supervisor is not None:
            self.supervisor.close()
            with suppress(RayError):
                self.supervisor.turn()
            self.center = self.supervisor.final()
            with suppress(Exception):
                self.supervisor.save()
        for actor in [*getattr(self, "shard_actors", []), self.coordinator]:
            ray.kill(actor)
        with suppress(OSError):
            (self.out / f".{self.run_id}").unlink()

    def _ask(self, reference: Any) -> Any:
        return ray.get(reference, timeout=60.0)

    def _write(self, event: str, rank: int, detail: str) -> None:
        if not self.joins:
            self._event_log.write(event, rank, detail)

    def _verdict(self) -> int:
        if self.signal is not None:
            return 128 + self.signal
        if self._failure and self.exit_codes and all(self.exit_codes.values()) and not self.joins:
            say(f"all {len(self.exit_codes)} workers died")
        return self._failure
