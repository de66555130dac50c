"""The simulator: every worker of a training run in one process, on a virtual clock.

Gradients are real, time is modelled. `Simulation` holds the workers, the center and the clock, and the few operations
that a schedule composes: the schedule alone decides who acts when. Nothing is random but the seeded jitter of the cost
model, so two runs are equal bit for bit, and a run that was saved goes on with the same bits.

It knows nothing of models or data: a gradient is a function of (x, worker, step).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from easgd import checkpoint
from easgd.center.guard import Refusal, check_factor, refusal_error
from easgd.center.history import History, Sender
from easgd.center.whole import Center
from easgd.engines.simulate.compressed_link import CompressedLink, links_of
from easgd.engines.simulate.cost import CostModel
from easgd.engines.simulate.exchange_cost import ExchangeCost
from easgd.engines.simulate.gradients import Gradient, Gradients
from easgd.engines.simulate.hierarchy import Hierarchy, Machines
from easgd.engines.simulate.periods import measure, prepare_periods
from easgd.engines.simulate.schedules import SCHEDULES
from easgd.engines.simulate.sim_worker import ExchangeInFlight, SimWorker, StepInProgress, load_state, state_of
from easgd.errors import refuse, unknown
from easgd.faults import Fault, in_order, ranks
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
    """A training run on a virtual clock; see `easgd.simulate` for the arguments.

    Example:
        >>> import torch, easgd
        >>> sim = easgd.Simulation(lambda x, worker, step: x, torch.ones(1), easgd.EASGD(period=1), lr=0.5, workers=2)
        >>> sim.run(6), len(sim.living)
        (6, 2)
    """

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
        history: History | None = None,
        machines: Machines | None = None,
        starts: Callable[[int], Tensor] | None = None,
    ) -> None:
        method.check(workers, lr)
        method.check_size(x0.numel())
        if schedule not in SCHEDULES:
            raise unknown("schedule", schedule, SCHEDULES)
        method.check_schedule(schedule)
        in_full = method.name == "ADMM" or (schedule == "sync" and method.is_elastic)
        if compression is not None and in_full:
            raise refuse("compression", compression, f"{method.name}, {schedule}: sent in full", "leave it out")
        if nonfinite not in ("skip", "reset", "raise"):
            raise unknown("policy nonfinite", nonfinite, ("skip", "reset", "raise"))
        if history is not None and machines is not None:
            raise refuse("history", "given", "it is of one center, and machines have their own", "leave it out")
        if curvature is not None:
            refuse_unstable(method, lr, workers, schedule, curvature)
        self.method, self.launched, self.schedule_name = method, workers, schedule
        self.cost = CostModel.preset(cost) if isinstance(cost, str) else cost or CostModel()
        self.nonfinite, self.compression, self.machines = nonfinite, compression, machines
        self.starts = starts
        self.on_record = on_record or (lambda record: None)
        self.gradients = Gradients(gradient, parallel)
        slots = method.center_slots(x0.detach().reshape(-1))
        self.center = Center(method, slots, fused=False, guard=check_factor(guard))
        self.time, self.ticks, self.alive = 0.0, 0, workers
        self.faults = in_order(faults)
        self.struck = 0
        self.history = history
        self._recording, self._rolls, self._sent = False, 0, 0
        self.make_scheduler = scheduler
        make = optimizer or (lambda params: method.optimizer(params, lr, weight_decay))
        self.workers = [self._worker(rank, make, scheduler, seed) for rank in range(ranks(workers, faults))]
        self.levels = None if machines is None else Hierarchy(self, machines, guard)
        if machines is None:
            self.exchange_cost = ExchangeCost(self.cost, method, self.center, compression)
        else:
            self.exchange_cost = ExchangeCost(machines.inside(self.cost), method, self.center)
        prepare_periods(self, curvature)
        self.schedule = SCHEDULES[schedule](self)

    def _worker(self, rank: int, make: OptimizerFactory, scheduler: SchedulerFactory | None, seed: int) -> SimWorker:
        x = (self.center.x if self.starts is None else self.starts(rank).detach().reshape(-1)).clone()
        if x.shape != self.center.x.shape:
            why = f"worker {rank} would start with {x.numel()} values, and x0 has {self.center.x.numel()}"
            raise refuse("starts", tuple(x.shape), why, "give points like x0")
        optimizer = make([x])
        return SimWorker(
            state=WorkerState(rank, Replica([x], optimizer, in_host_memory=False), self.method),
            scheduler=scheduler(optimizer) if scheduler else None,
            rng=np.random.default_rng([seed, rank]),
            alive=rank < self.launched,
            seen=[0] * self.method.fragments,
            links=self.new_links(),
        )

    def new_links(self) -> list[CompressedLink] | None:
        """A worker's compressed wires; where machines have centers, only those have them."""
        return None if self.machines is not None else links_of(self.compression, self.center)

    # running ---------------------------------------------------------------------------------------------------

    def run(self, steps: int, on_tick: Callable[[Simulation], None] | None = None) -> int:
        """Advance by `steps` ticks (rounds, if synchronous); return how many were done before all workers died."""
        self._begin_record()
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

    # the history -----------------------------------------------------------------------------------------------

    def _begin_record(self) -> None:
        """Write down the start value, when the first step is about to be taken: a saved state is loaded by then."""
        if self.history is not None and not self._recording:
            self._recording = True
            self.center.record(self.history, codec=self.compression or "")
            self.roll()

    def roll(self) -> None:
        """Write down who is alive from here on."""
        if self.history is not None:
            self.history.roll(self._rolls, [worker.state.rank for worker in self.living], max(1, self.alive))
            self._rolls += 1

    def sender(self, worker: SimWorker) -> Sender:
        """A name for the exchange that this worker makes now; it is the history's sender from here on."""
        self._sent += 1
        sender = Sender(worker.state.rank, worker.state.incarnation, self._sent, max(1, self.alive))
        if self.history is not None:
            self.history.sender = sender
        return sender

    def end_record(self) -> None:
        """Write down the last value."""
        if self._recording:
            self.center.end_record()

    # what schedules compose ------------------------------------------------------------------------------------

    def scale(self, worker: SimWorker, fragment: int = 0) -> float:
        """The exchange's scalar for this worker, with the workers alive now and what it has not seen of the center."""
        living, launched = self.beside(worker)
        scale = self.method.scale(worker.state.replica.lr, living, launched)
        return scale * self.method.weight(self.center_of(worker).parts[fragment].version - worker.seen[fragment])

    def center_of(self, worker: SimWorker) -> Center:
        """The center that this worker exchanges with: the run's, or its machine's."""
        return self.center if self.levels is None else self.levels.of(worker.state.rank).center

    def beside(self, worker: SimWorker) -> tuple[int, int]:
        """How many workers share this one's center now, and how many did at the start."""
        if self.levels is None:
            return self.alive or 1, self.launched
        machine = self.levels.of(worker.state.rank)
        return machine.living or 1, machine.launched

    def begin(self, worker: SimWorker, now: float) -> ExchangeInFlight | None:
        """Open a step; return the exchange that it begins with, if one is due."""
        state = worker.state
        state.prepare()
        self.gradients.draw(state)
        worker.step = StepInProgress(began=now)
        if not state.due:
            return None
        message = state.message()
        if message is not None and state.due_after > state.clock and state.parts[state.fragment].owns(message):
            message = message.clone()  # x may move before the center has read it
        flight = ExchangeInFlight(state.fragment, state.clock, state.due_after, now, message)
        worker.in_flight.append(flight)
        return flight

    def serve(self, worker: SimWorker, flight: ExchangeInFlight) -> None:
        """The center answers this worker's message, atomically."""
        center, scale = self.center_of(worker).parts[flight.fragment], self.scale(worker, flight.fragment)
        rank = worker.state.rank
        self.observe(worker, flight)
        self.sender(worker)
        if worker.links is None:
            answer = center.exchange(flight.message, scale, rank=rank)
        else:
            link, cost = worker.links[flight.fragment], self.exchange_cost
            answer = link.exchange(center, flight.message, scale, rank)
            flight.bytes += link.sent_in_full * cost.more_in_full(flight.fragment)
        self.answered(worker, flight, answer)

    def observe(self, worker: SimWorker, flight: ExchangeInFlight) -> None:
        """Note staleness, distance and bytes as the center sees the worker, before it answers."""
        f = flight.fragment
        center = self.center_of(worker).parts[f]
        flight.staleness = center.version - worker.seen[f]
        flight.distance = float(torch.dist(worker.state.local(f), center.x))
        # Nothing of what stays inside a machine crosses a network.
        flight.bytes = 0 if self.levels is not None else 2 * self.exchange_cost.message_bytes[f]

    def answered(self, worker: SimWorker, flight: ExchangeInFlight, answer: Tensor | None) -> None:
        """Keep the answer; None says that the center refused the message."""
        center = self.center_of(worker).parts[flight.fragment]
        worker.seen[flight.fragment] = center.version
        flight.answer = None if flight.dropped else answer
        if answer is None:
            self.refused(worker, center.refusal)
        elif self.history is not None and flight.message is not None and self.method.is_elastic:
            self.history.answer(answer, self.center.bounds[flight.fragment][0])

    def push(self, worker: SimWorker, fragment: int, message: Tensor) -> bool:
        """A message that wants no answer reaches the center."""
        self.sender(worker)
        return self.center_of(worker).parts[fragment].push(message, self.scale(worker, fragment))

    def refused(self, worker: SimWorker, why: Refusal) -> None:
        """A message did not reach the center: the policy decides what becomes of the worker."""
        state = worker.state
        self.on_record(Event("refused", self.time, state.rank, f"step {state.clock}: {why}"))
        if self.nonfinite == "raise":
            raise refusal_error(state.rank, state.clock, why)
        if self.nonfinite == "reset":
            self.gradients.drop(state)
            state.replica.reset_(self.center_of(worker).x)
            state.start()
            for flight in worker.in_flight:
                flight.dropped, flight.answer = True, None

    def start_compute(self, worker: SimWorker) -> float:
        """Draw what this step's data and gradient cost; return their sum."""
        step = worker.step
        step.data = self.cost.data_seconds(self.alive)
        step.compute = self.cost.compute_seconds(worker.state.rank, worker.rng) * worker.slowness
        return step.data + step.compute

    def step(self, worker: SimWorker, now: float) -> list[tuple[int, Tensor]]:
        """Gradient, optimizer, the rest of the exchange; return what the worker still pushes, with its fragment."""
        state, step = worker.state, worker.step
        clock, due = state.clock, worker.due()
        state.prepare()
        state.replica.params[0].grad = self.gradients.take(state)
        state.replica.optimizer.step()
        state.replica.params[0].grad = None
        pushes = [
            (flight.fragment, push)
            for flight in due
            if flight.answer is not None and (push := state.complete(flight.answer, flight.fragment)) is not None
        ]
        worker.in_flight = [flight for flight in worker.in_flight if flight not in due]
        parts = self.center.parts
        refusals = [parts[f].refusal for f, push in pushes if not parts[f].accepts(push, 1.0, state.rank)]
        own = state.finish()
        measure(worker, due)
        if own is not None and self.sender(worker) and not parts[0].push(own, 1.0):
            refusals.append(Refusal())  # the center is the worker's own x: nothing travels
        loss = self.gradients.loss(state)
        if first_drop(worker.scheduler, loss) and self.method.averages_from_first_drop:
            self.center.begin_average()
        if worker.scheduler is not None:
            worker.scheduler.step()
        last = due[-1] if due else ExchangeInFlight(0, 0, 0, 0.0, None)
        self.on_record(
            Step(
                state.rank, clock, now, step.compute, step.data, step.communication, step.waiting,
                last.staleness, last.distance, sum(flight.bytes for flight in due), loss,
            )
        )  # fmt: skip
        if refusals:
            self.refused(worker, refusals[0])
        return [] if refusals else pushes

    def next_fault(self, until: float) -> Fault | None:
        """Take the next fault that is due by `until`."""
        if self.struck == len(self.faults) or self.faults[self.struck].time > until:
            return None
        self.struck += 1
        return self.faults[self.struck - 1]

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
            "machines": None if self.levels is None else self.levels.state_dict(),
            "guard": [torch.tensor(guard.table.tolist(), dtype=torch.float64) for guard in self.center.guards],
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
        for guard, table in zip(self.center.guards, state.get("guard", []), strict=False):
            guard.load(table.tolist())
        if self.levels is not None:
            self.levels.load_state_dict(state["machines"])
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
