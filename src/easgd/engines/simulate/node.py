"""A worker on the virtual clock, what its current step has cost so far, and how both are saved."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from easgd.engines.simulate.wire import Wire
from easgd.worker.loop import Loop


@dataclass(slots=True)
class Turn:
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
class Node:
    """A worker on the virtual clock."""

    worker: Loop
    scheduler: torch.optim.lr_scheduler.LRScheduler | None
    rng: np.random.Generator
    alive: bool
    slowness: float = 1.0
    paused_until: float = 0.0
    seen: int = 0
    wire: Wire | None = None
    turn: Turn = field(default_factory=Turn)


TURN_FIELDS = tuple(Turn.__dataclass_fields__)
NODE_FIELDS = ("alive", "slowness", "paused_until", "seen")


def state_of(node: Node) -> dict[str, Any]:
    """Everything of a node that decides its future."""
    return {
        **{name: getattr(node, name) for name in NODE_FIELDS},
        "worker": node.worker.state_dict(),
        "scheduler": node.scheduler.state_dict() if node.scheduler else None,
        "rng": node.rng.bit_generator.state,
        "turn": {name: getattr(node.turn, name) for name in TURN_FIELDS},
        "wire": None if node.wire is None else node.wire.state_dict(),
    }


def load_state(node: Node, state: dict[str, Any]) -> None:
    """Take back what `state_of` gave."""
    for name in NODE_FIELDS:
        setattr(node, name, state[name])
    node.worker.load_state_dict(state["worker"])
    if node.scheduler is not None:
        node.scheduler.load_state_dict(state["scheduler"])
    node.rng.bit_generator.state = state["rng"]
    node.turn = Turn(**state["turn"])
    if node.wire is not None:
        node.wire.load_state_dict(state["wire"])
