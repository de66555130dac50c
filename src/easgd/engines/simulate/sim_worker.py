"""A worker on the virtual clock, what its current step has cost so far, and how both are saved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from easgd.engines.simulate.compressed_link import CompressedLink
from easgd.worker.state import WorkerState


@dataclass(slots=True)
class StepInProgress:
    """What a worker's current step has cost so far."""

    began: float = 0.0
    compute: float = 0.0
    data: float = 0.0
    communication: float = 0.0
    waiting: float = 0.0
    done_at: float | None = None


@dataclass(slots=True, eq=False)
class ExchangeInFlight:
    """One exchange, from its message to the use of its answer.

    Attributes:
        fragment: the part of the vector that it is of.
        asked: the clock of the step that began with it.
        due: the clock of the step after which its answer is used.
        began: when that step began.
        message: what was sent; None is a pull.
        seconds: what it takes, without the queue at the center.
        dropped: whether the worker has started anew from the center since: the answer is not for this x.
    """

    fragment: int
    asked: int
    due: int
    began: float
    message: Tensor | None
    seconds: float = 0.0
    answered: bool = False
    dropped: bool = False
    answer: Tensor | None = None
    staleness: int | None = None
    distance: float | None = None
    bytes: int = 0


@dataclass(slots=True)
class SimWorker:
    """A worker on the virtual clock."""

    state: WorkerState
    scheduler: torch.optim.lr_scheduler.LRScheduler | None
    rng: np.random.Generator
    alive: bool
    slowness: float = 1.0
    paused_until: float = 0.0
    seen: list[int] = field(default_factory=list)
    links: list[CompressedLink] | None = None
    step: StepInProgress = field(default_factory=StepInProgress)
    in_flight: list[ExchangeInFlight] = field(default_factory=list)

    def flight(self, fragment: int) -> ExchangeInFlight:
        """The exchange of this fragment that is in flight."""
        return next(flight for flight in self.in_flight if flight.fragment == fragment)

    def due(self) -> list[ExchangeInFlight]:
        """The exchanges whose answers are used after the present step: one at most, or none."""
        return [flight for flight in self.in_flight if flight.due <= self.state.clock]


STEP_FIELDS = tuple(StepInProgress.__dataclass_fields__)
FLIGHT_FIELDS = tuple(ExchangeInFlight.__dataclass_fields__)
WORKER_FIELDS = ("alive", "slowness", "paused_until", "seen")


def state_of(worker: SimWorker) -> dict[str, Any]:
    """Everything of a worker that decides its future."""
    return {
        **{name: getattr(worker, name) for name in WORKER_FIELDS},
        "state": worker.state.state_dict(),
        "scheduler": worker.scheduler.state_dict() if worker.scheduler else None,
        "rng": worker.rng.bit_generator.state,
        "step": {name: getattr(worker.step, name) for name in STEP_FIELDS},
        "in_flight": [{name: getattr(flight, name) for name in FLIGHT_FIELDS} for flight in worker.in_flight],
        "links": None if worker.links is None else [link.state_dict() for link in worker.links],
    }


def load_state(worker: SimWorker, state: dict[str, Any]) -> None:
    """Take back what `state_of` gave."""
    for name in WORKER_FIELDS:
        setattr(worker, name, state[name])
    worker.seen = list(worker.seen)
    worker.state.load_state_dict(state["state"])
    if worker.scheduler is not None:
        worker.scheduler.load_state_dict(state["scheduler"])
    worker.rng.bit_generator.state = state["rng"]
    worker.step = StepInProgress(**state["step"])
    worker.in_flight = [ExchangeInFlight(**saved) for saved in state["in_flight"]]
    for link, saved in zip(worker.links or [], state["links"] or [], strict=True):
        link.load_state_dict(saved)
