"""The launcher of a run on a cluster: makes the desk, the center's shards and the workers' seats, and watches them.

It takes no part in the training. Ray places actors, sees them die and restarts those of the center; what a worker's
end means is decided here, as on one machine:

    exit code 0                      the worker has left
    anything else                    it died: told to the desk, recorded, seated again if restarts are left
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

from easgd.center.raylink import Desk as DeskLink
from easgd.engines.local.book import Book, prepare
from easgd.engines.local.output import say
from easgd.engines.local.process import describe_exit
from easgd.engines.ray.cluster import Cluster
from easgd.engines.ray.keeper import Keeper, Onlooker
from easgd.engines.ray.post import Post
from easgd.engines.ray.seat import Seat
from easgd.engines.ray.settings import Settings
from easgd.engines.ray.stage import place, plan_of
from easgd.signals import taken

TURN, SWEEP, CALL_SECONDS = 0.1, 1.0, 30.0
BAD_INPUT = 2


@dataclass
class Seated:
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
        self.keeper: Keeper | None = None
        self._failure = 0
        self._living: dict[Any, Seated] = {}  # by the reference of its end
        self._restarted: dict[int, int] = {}
        self._post = Post(out)
        self._presses, self._stopping, self._deadline, self._next_sweep = 0, False, float("inf"), 0.0
        self._foreign: dict[int, int] = {}
        self._graves: list[tuple[int, int, bool]] = []

    def run(self) -> int:
        """Start everything, stay until all workers have ended, return the exit code."""
        with taken(self._pressed, signal.SIGHUP):
            try:
                self._start_all()
                while self._living:
                    self._turn()
            finally:
                self._kill_all()
        return self._verdict()

    # starting ------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make the desk and the shards, or find those of the run that is joined; `close` undoes it."""
        if self.joins:
            self.desk = DeskLink(self.run_id).actor
            self.plan = self._ask(self.desk.describe.remote())
            return
        prepare(self.out, resumed=self.elapsed is not None)
        (self.out / f".{self.run_id}").touch()
        self._book = Book(self.out, self._zero)
        self.plan = plan_of(
            self.run_id, self.out, self.workers, self.schedule, self.settings, self.started, self.elapsed or 0.0
        )
        self.desk, self.hosts = place(self.run_id, self.cluster, self.workers, self.settings)
        self._ask(self.desk.begin.remote(self.plan, self.hosts))
        self.keeper = Keeper(self.desk, self.hosts, self.out, self._book, self.settings.interval)
        self.keeper.start()

    @property
    def seen(self) -> Onlooker:
        """The center, for whoever watches."""
        assert self.keeper is not None
        return Onlooker(self.keeper)

    def _zero(self) -> float:
        """The moment at which training began, on this machine's monotonic clock; before that, the run's start."""
        rolls = self.keeper.opened().values() if self.keeper is not None else ()
        began = min((roll["began"] for roll in rolls if roll["began"] is not None), default=self.started)
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
        rank, incarnation = DeskLink(self.run_id).ask("seat", rank)
        options = {"num_cpus": self._share, "num_gpus": self.settings.gpus, "max_restarts": 0, "max_concurrency": 1}
        name = f"seat-{rank}-{incarnation}"
        seat = ray.remote(Seat).options(
            **options, name=name, namespace=self.run_id, scheduling_strategy="SPREAD"
        )  # fmt: skip
        actor = seat.remote(self.desk, self.plan, rank, incarnation)
        self._living[actor.run.remote(*self.target)] = Seated(rank, incarnation, actor)
        return rank

    # watching ------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        """Pass on output, look after ends, stop if asked to."""
        ended, _ = ray.wait(list(self._living), num_returns=1, timeout=TURN)
        for reference in ended:
            self._bury(reference)
        self._bury_all()
        if not self.joins:
            self._pass_on()
        if time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + SWEEP
            self._sweep()
        self._obey()

    def _pass_on(self) -> None:
        with suppress(RayError):
            self._post.deliver(ray.get(self.desk.drain.remote(), timeout=CALL_SECONDS))

    def _bury(self, reference: Any) -> None:
        """A worker has ended: record it, tell the desk, seat it again or give its rank back."""
        seated = self._living.pop(reference)
        rank = seated.rank
        try:
            code, how = (value := int(ray.get(reference))), describe_exit(value)
        except RayError as error:
            code, how = -signal.SIGKILL, f"killed or lost with its node ({type(error).__name__})"
        ray.kill(seated.actor)
        self.exit_codes[rank] = code
        restarts = self._restarted.get(rank, 0)
        again = bool(code and not self._stopping and restarts < self.settings.restarts and code != BAD_INPUT)
        self._write("stopped" if self._stopping else "death" if code else "leave", rank, how)
        self._graves.append((rank, seated.incarnation, again))
        self._bury_all()
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

    def _bury_all(self) -> None:
        """Tell the desk; one that is being restarted, perhaps because it was on the same lost node, hears it later."""
        while self._graves:
            try:
                ray.get(self.desk.bury.remote(*self._graves[0]), timeout=CALL_SECONDS)
            except RayError:
                return
            self._graves.pop(0)

    def _sweep(self) -> None:
        """Look beyond the own workers: joined ones whose launcher is gone; or, having joined, the run's own end."""
        if self.joins:
            try:
                ray.get(self.desk.describe.remote(), timeout=CALL_SECONDS)
            except RayError:
                say(f"run {self.run_id} has ended; stopping")
                self._kill_all()
            return
        copy = self.keeper.copy if self.keeper is not None else None
        own = {seated.rank for seated in self._living.values()}
        for rank, incarnation in (copy or {}).get("held", {}).items():
            if rank in own or rank in self._restarted or rank < self.workers:
                continue
            if rank not in self._foreign:
                self._foreign[rank] = incarnation
                self._write("join", rank, "by another launcher")
            try:
                ray.get_actor(f"seat-{rank}-{incarnation}", namespace=self.run_id)
            except ValueError:
                self._write("death", rank, "its launcher is gone")
                self._foreign.pop(rank, None)
                with suppress(RayError):
                    ray.get(self.desk.bury.remote(rank, incarnation), timeout=CALL_SECONDS)

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
                    ray.get(self.desk.stop.remote(), timeout=CALL_SECONDS)
        if self._presses > 1 or time.monotonic() > self._deadline:
            self._kill_all()

    def _kill_all(self) -> None:
        self._stopping = True
        for seated in self._living.values():
            ray.kill(seated.actor)

    def close(self) -> None:
        """Save the center, pass on the last words, leave nothing behind."""
        self._kill_all()
        if self.joins or not hasattr(self, "desk"):
            return
        self._pass_on()
        self._post.close()
        if self.keeper is not None:
            self.keeper.close()
            with suppress(RayError):
                self.keeper.turn()
            self.center = self.keeper.final()
            with suppress(Exception):
                self.keeper.save()
        for actor in [*getattr(self, "hosts", []), self.desk]:
            ray.kill(actor)
        with suppress(OSError):
            (self.out / f".{self.run_id}").unlink()

    def _ask(self, reference: Any) -> Any:
        return ray.get(reference, timeout=60.0)

    def _write(self, event: str, rank: int, detail: str) -> None:
        if not self.joins:
            self._book.write(event, rank, detail)

    def _verdict(self) -> int:
        if self.signal is not None:
            return 128 + self.signal
        if self._failure and self.exit_codes and all(self.exit_codes.values()) and not self.joins:
            say(f"all {len(self.exit_codes)} workers died")
        return self._failure
