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
    """What a worker's current step has cost so far, and what it waits for."""

    began: float = 0.0
    compute: float = 0.0
    data: float = 0.0
    communication: float = 0.0
    waiting: float = 0.0
    asked: bool = False
    answered: bool = False
    done_at: float | None = None
    staleness: int | None = None
    distance: float | None = None
    bytes: int = 0
    answer: Tensor | None = None


@dataclass(slots=True)
class SimWorker:
    """A worker on the virtual clock."""

    state: WorkerState
    scheduler: torch.optim.lr_scheduler.LRScheduler | None
    rng: np.random.Generator
    alive: bool
    slowness: float = 1.0
    paused_until: float = 0.0
    seen: int = 0
    link: CompressedLink | None = None
    step: StepInProgress = field(default_factory=StepInProgress)


STEP_FIELDS = tuple(StepInProgress.__dataclass_fields__)
WORKER_FIELDS = ("alive", "slowness", "paused_until", "seen")


def state_of(worker: SimWorker) -> dict[str, Any]:
    """Everything of a worker that decides its future."""
    return {
        **{name: getattr(worker, name) for name in WORKER_FIELDS},
        "state": worker.state.state_dict(),
        "scheduler": worker.scheduler.state_dict() if worker.scheduler else None,
        "rng": worker.rng.bit_generator.state,
        "step": {name: getattr(worker.step, name) for name in STEP_FIELDS},
        "link": None if worker.link is None else worker.link.state_dict(),
    }


def load_state(worker: SimWorker, state: dict[str, Any]) -> None:
    """Take back what `state_of` gave."""
    for name in WORKER_FIELDS:
        setattr(worker, name, state[name])
    worker.state.load_state_dict(state["state"])
    if worker.scheduler is not None:
        worker.scheduler.load_state_dict(state["scheduler"])
    worker.rng.bit_generator.state = state["rng"]
    worker.step = StepInProgress(**state["step"])
    if worker.link is not None:
        worker.link.load_state_dict(state["link"])
