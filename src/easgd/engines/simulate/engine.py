"""The simulator: every worker of a training run in one process, on a virtual clock.

Gradients are real, time is modelled. `Simulation` holds the workers, the center and the clock, and the few operations
that a schedule composes: the schedule alone decides who acts when. Nothing is random but the seeded jitter of the cost
model, so two runs are equal bit for bit, and a run that was saved goes on with the same bits.

It knows nothing of models or data: a gradient is a function of (x, worker, step).
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from easgd import checkpoint
from easgd.center.guard import Guard, check_factor, refusal_error
from easgd.center.state import CenterState
from easgd.compress import Codec
from easgd.engines.simulate.compressed_link import link_of
from easgd.engines.simulate.cost import CostModel
from easgd.engines.simulate.faults import Fault, ranks
from easgd.engines.simulate.gradients import Gradient, Gradients
from easgd.engines.simulate.schedules import SCHEDULES
from easgd.engines.simulate.sim_worker import SimWorker, StepInProgress, load_state, state_of
from easgd.errors import refuse, unknown
from easgd.flat import Replica
from easgd.learning_rate import first_drop
from easgd.methods import Method
from easgd.records import Event, Record, Step
from easgd.worker.stability import refuse_unstable
from easgd.worker.state import WorkerState

ScheduleName = Literal["round-robin", "async", "sync"]
OptimizerFactory = Callable[[list[Tensor]], torch.optim.Optimizer]
SchedulerFactory = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler | None]


class Simulation:
    """A training run on a virtual clock; see `easgd.simulate` for the arguments."""

    def __init__(
        self,
        gradient: Gradient,
        x0: Tensor,
        method: Method,
        *,
        lr: float,
        workers: int,
        schedule: ScheduleName = "round-robin",
        seed: int = 0,
        cost: CostModel | str | None = None,
        weight_decay: float = 0.0,
        optimizer: OptimizerFactory | None = None,
        scheduler: SchedulerFactory | None = None,
        faults: Sequence[Fault] = (),
        curvature: float | None = None,
        nonfinite: Literal["skip", "reset", "raise"] = "skip",
        parallel: int = 1,
        on_record: Callable[[Record], None] | None = None,
        compression: str | None = None,
        guard: float | None = None,
    ) -> None:
        method.check(workers, lr)
        if schedule not in SCHEDULES:
            raise unknown("schedule", schedule, SCHEDULES)
        method.check_schedule(schedule)
        if compression is not None and (schedule == "sync" or method.name == "ADMM"):
            raise refuse("compression", compression, f"{method.name}, {schedule}: sent in full", "leave it out")
        if nonfinite not in ("skip", "reset", "raise"):
            raise unknown("policy nonfinite", nonfinite, ("skip", "reset", "raise"))
        if curvature is not None:
            refuse_unstable(method, lr, workers, schedule, curvature)
        self.method, self.launched, self.schedule_name = method, workers, schedule
        self.cost = CostModel.preset(cost) if isinstance(cost, str) else cost or CostModel()
        self.nonfinite, self.compression = nonfinite, compression
        self.on_record = on_record or (lambda record: None)
        self.gradients = Gradients(gradient, parallel)
        self.center = CenterState(method, method.center_slots(x0.detach().reshape(-1)), fused=False)
        self.guard = self.center.guard = Guard(0.0 if method.sequential else check_factor(guard))
        self.time, self.ticks, self.alive = 0.0, 0, workers
        self.faults = sorted(faults, key=lambda f: f.time)
        self.struck = 0
        self._make_scheduler = scheduler
        make = optimizer or (lambda params: method.optimizer(params, lr, weight_decay))
        self.workers = [self._worker(rank, make, scheduler, seed) for rank in range(ranks(workers, faults))]
        size = self.cost.message_bytes
        self.message_bytes = self.center.x.numel() * self.center.x.element_size() if size is None else size
        if compression is not None:
            n = self.center.x.numel()
            self.message_bytes = self.message_bytes * Codec.named(compression).bytes(n) // (4 * n)
        self.schedule = SCHEDULES[schedule](self)

    def _worker(self, rank: int, make: OptimizerFactory, scheduler: SchedulerFactory | None, seed: int) -> SimWorker:
        x = self.center.x.clone()  # all start from one point
        optimizer = make([x])
        return SimWorker(
            state=WorkerState(rank, Replica([x], optimizer, in_host_memory=False), self.method),
            scheduler=scheduler(optimizer) if scheduler else None,
            rng=np.random.default_rng([seed, rank]),
            alive=rank < self.launched,
            link=link_of(self.compression, self.center.x),
        )

    # running ---------------------------------------------------------------------------------------------------

    def run(self, steps: int, on_tick: Callable[[Simulation], None] | None = None) -> int:
        """Advance by `steps` ticks (rounds, if synchronous); return how many were done before all workers died."""
        for done in range(steps):
            if not self.schedule.tick():
                self.on_record(Event("stopped", self.time, None, "no worker is left"))
                return done
            self.ticks += 1
            if on_tick is not None:
                on_tick(self)
        return steps

    @property
    def living(self) -> list[SimWorker]:
        """The workers that are alive, by rank."""
        return [worker for worker in self.workers if worker.alive]

    # what schedules compose ------------------------------------------------------------------------------------

    def scale(self, worker: SimWorker) -> float:
        """The exchange's scalar for this worker, with the workers alive now and what it has not seen of the center."""
        scale = self.method.scale(worker.state.replica.lr, self.alive or 1, self.launched)
        return scale * self.method.weight(self.center.version - worker.seen)

    def begin(self, worker: SimWorker, now: float) -> bool:
        """Open a step; whether it begins with an exchange."""
        worker.state.prepare()
        self.gradients.draw(worker.state)
        worker.step = StepInProgress(began=now, asked=worker.state.due)
        return worker.step.asked

    def serve(self, worker: SimWorker) -> None:
        """The center answers this worker's message, atomically."""
        message = worker.state.message()
        self.observe(worker)
        if worker.link is None:
            answer = self.center.exchange(message, self.scale(worker), rank=worker.state.rank)
        else:
            answer = worker.link.exchange(self.center, message, self.scale(worker), worker.state.rank)
        self.answered(worker, answer)

    def observe(self, worker: SimWorker) -> None:
        """Note staleness, distance and bytes as the center sees the worker, before it answers."""
        step = worker.step
        step.staleness = self.center.version - worker.seen
        step.distance = float(torch.dist(worker.state.local(), self.center.x))
        step.bytes += 2 * self.message_bytes

    def answered(self, worker: SimWorker, answer: Tensor | None) -> None:
        """Keep the answer; None says that the center refused the message."""
        worker.seen = self.center.version
        worker.step.answer = answer
        if answer is None:
            self.refused(worker)

    def refused(self, worker: SimWorker) -> None:
        """A message did not reach the center: the policy decides what becomes of the worker."""
        state, why = worker.state, self.center.refusal
        self.on_record(Event("refused", self.time, state.rank, f"step {state.clock}: {why}"))
        if self.nonfinite == "raise":
            raise refusal_error(state.rank, state.clock, why)
        if self.nonfinite == "reset":
            self.gradients.drop(state)
            state.replica.reset_(self.center.x)
            state.slots = self.method.start(state.replica)

    def start_compute(self, worker: SimWorker) -> float:
        """Draw what this step's data and gradient cost; return their sum."""
        step = worker.step
        step.data = self.cost.data_seconds(self.alive)
        step.compute = self.cost.compute_seconds(worker.state.rank, worker.rng) * worker.slowness
        return step.data + step.compute

    def step(self, worker: SimWorker, now: float) -> Tensor | None:
        """Gradient, optimizer, the rest of the exchange; return what the worker still pushes."""
        state, step = worker.state, worker.step
        clock = state.clock
        state.prepare()
        state.replica.params[0].grad = self.gradients.take(state)
        state.replica.optimizer.step()
        state.replica.params[0].grad = None
        push = state.finish(step.answer)
        step.answer = None
        refused = push is not None and not self.center.accepts(push, 1.0, state.rank)
        if self.method.sequential and push is not None:
            self.center.push(push, 1.0)  # the center is the worker's own x: nothing travels
        loss = self.gradients.loss(state)
        if first_drop(worker.scheduler, loss) and self.method.averages_from_first_drop:
            self.center.begin_average()
        if worker.scheduler is not None:
            worker.scheduler.step()
        self.on_record(
            Step(
                state.rank, clock, now, step.compute, step.data, step.communication, step.waiting,
                step.staleness, step.distance, step.bytes, loss,
            )
        )  # fmt: skip
        if refused:
            self.refused(worker)
        return None if refused or self.method.sequential else push

    def exchange_seconds(self, participants: int) -> tuple[float, float]:
        """Time up to the center and time back, for one message among this many workers."""
        full = self.cost.transfer_seconds(self.message_bytes, participants)
        pulls = self.cost.protocol == "pull-push" and self.method.answers_with == "difference"
        return (self.cost.latency if pulls else full), full

    def next_fault(self, until: float) -> Fault | None:
        """Take the next fault that is due by `until`."""
        if self.struck == len(self.faults) or self.faults[self.struck].time > until:
            return None
        self.struck += 1
        return self.faults[self.struck - 1]

    def strike(self, fault: Fault) -> None:
        """Let a fault happen to its worker."""
        worker = self.workers[fault.worker]
        self.on_record(Event(fault.what, fault.time, fault.worker, f"{fault.amount:g}" if fault.amount else ""))
        if fault.what == "death":
            worker.alive = False
            self.gradients.drop(worker.state)
        elif fault.what == "join" and not worker.alive:
            worker.alive = True
            worker.paused_until, worker.slowness, worker.seen = 0.0, 1.0, self.center.version
            worker.state.join(self.center.x)
            worker.link = link_of(self.compression, self.center.x)
            if self._make_scheduler is not None:
                # The rate decays on the worker's own clock, which starts anew.
                for group in worker.state.replica.optimizer.param_groups:
                    group["lr"] = group["initial_lr"]
                worker.scheduler = self._make_scheduler(worker.state.replica.optimizer)
                worker.state.replica.rates = [float(g["lr"]) for g in worker.state.replica.optimizer.param_groups]
        elif fault.what == "pause":
            worker.paused_until = fault.time + fault.amount
        elif fault.what == "slow":
            worker.slowness = fault.amount
        if fault.what in ("death", "join"):
            self.guard.forget(fault.worker)
            self.alive = len(self.living)
            self.on_record(Event("workers", fault.time, None, f"{self.alive} alive, scale {self.scale(worker):.6g}"))

    # saving ----------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the future of the run."""
        function = self.gradients.function
        return {
            "method": repr(self.method),
            "schedule_name": self.schedule_name,
            "time": self.time,
            "ticks": self.ticks,
            "center": self.center.state_dict(),
            "workers": [state_of(worker) for worker in self.workers],
            "struck": self.struck,
            "schedule": self.schedule.state_dict(),
            "guard": torch.tensor(self.guard.table.tolist(), dtype=torch.float64),
            "gradient": function.state_dict() if hasattr(function, "state_dict") else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state; the settings must be those it was saved with."""
        for name, mine in (("method", repr(self.method)), ("schedule_name", self.schedule_name)):
            if state[name] != mine:
                raise refuse(name, mine, f"the state was saved with {state[name]}", "give the same settings")
        if len(state["workers"]) != len(self.workers) or state["center"]["slots"]["x"].shape != self.center.x.shape:
            saved = f"{len(state['workers'])} workers of {state['center']['slots']['x'].numel()} parameters"
            raise refuse("workers", len(self.workers), f"the state holds {saved}", "give the same settings")
        self.time, self.ticks = state["time"], state["ticks"]
        self.center.load_state_dict(state["center"])
        for worker, saved in zip(self.workers, state["workers"], strict=True):
            load_state(worker, saved)
        if "guard" in state:
            self.guard.table = memoryview(array("d", state["guard"].tolist()))
        self.alive = len(self.living)
        self.struck = state["struck"]
        for worker in self.workers:
            self.gradients.drop(worker.state)
        self.schedule.load_state_dict(state["schedule"])
        if state["gradient"] is not None:
            self.gradients.function.load_state_dict(state["gradient"])  # type: ignore[attr-defined]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to one file, atomically."""
        checkpoint.save(path, self.state_dict())

    def load(self, path: str | os.PathLike[str]) -> None:
        """Go on from a file that `save` wrote."""
        self.load_state_dict(checkpoint.load(path))
