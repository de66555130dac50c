"""What a simulated worker computes: the real exchange around a vector of parameters, with noise for gradients."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from easgd.center.client import CenterClient, JoinRequest
from easgd.center.layout import Layout
from easgd.flat import Replica
from easgd.methods import Method
from easgd.runtime import time
from easgd.worker.exchange import Exchange, Overlap
from easgd.worker.first_gradient import FirstInputs
from easgd.worker.recorder import Recorder
from easgd.worker.state import WorkerState

CENTER = "center"
LR = 0.1
GATHER_SECONDS = 20.0
PATIENCE = 3


class Scene(Protocol):
    """What a scenario says of the training."""

    seed: int
    workers: int
    method: Method
    step_seconds: float
    deadline: float

    @property
    def size(self) -> int: ...

    @property
    def schedule(self) -> str: ...


class Training:
    """One worker's replica, from its start to its end."""

    def __init__(self, scene: Scene, rank: int, incarnation: int) -> None:
        self.scene, self.rank, self.incarnation = scene, rank, incarnation
        self.chance = np.random.default_rng((scene.seed, rank, incarnation))
        self.params = nn.Parameter(self._noise())
        self.optimizer = torch.optim.SGD([self.params], LR)
        self.replica = Replica([self.params], self.optimizer)
        self.state = WorkerState(rank, self.replica, scene.method)
        self.steps_taken = 0

    def _noise(self) -> torch.Tensor:
        return torch.from_numpy(self.chance.standard_normal(self.scene.size).astype(np.float32))

    def request(self, **options: Any) -> JoinRequest:
        """What the worker brings when it connects."""
        start, layout = self.replica.read().clone(), Layout.of({"x": self.params})
        return JoinRequest(
            self.scene.method, start, layout, self.rank, self.incarnation, self.scene.workers, CENTER, **options
        )

    def join(self, client: CenterClient) -> None:
        """Start from the center's value."""
        self.replica.write_(client.join(self.incarnation))

    def gather(self, client: CenterClient) -> None:
        """Wait for the others, as workers that are launched together do."""
        self.state.start()
        self.state.incarnation = self.incarnation
        if self.incarnation == 0:
            client.gather(GATHER_SECONDS)
        self.recorder = Recorder(self.rank, self.incarnation, None)
        self.recorder.begin(client.begin(0.0))

    def tie(self, client: CenterClient, overlap: Overlap) -> None:
        """Make the exchange with the center."""
        self.exchange = Exchange(
            self.state, client, self.recorder, self.scene.workers, schedule=self.scene.schedule, nonfinite="skip",
            overlap=overlap, deadline=self.scene.deadline, patience=PATIENCE, still=True,
            keep_weights=lambda: "", inputs=FirstInputs(),
        )  # fmt: skip

    def steps(self, count: int) -> None:
        """Train."""
        for _ in range(count):
            time.sleep(self.chance.exponential(self.scene.step_seconds))
            self.exchange.begin()
            time.sleep(self.chance.exponential(self.scene.step_seconds))
            self.params.grad = self._noise()
            self.exchange.before_step(closure=False)
            self.optimizer.step()
            self.exchange.finish()
            self.steps_taken += 1
