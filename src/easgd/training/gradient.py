"""The gradients of a task for the simulator: the same numbers on any number of threads.

What depends on the order of events, which chunk of the data a worker gets, is drawn when its turn begins. The rest,
cutting the crops, forward and backward, follows from (worker, step) and may run anywhere.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from easgd.data import Loader, Sampler
from easgd.engines.simulate import ModelGradient
from easgd.models import seed_dropout
from easgd.training.task import Batch, Task, loss, seed_of


class TaskGradient(ModelGradient):
    """gradient(x, worker, step) of a task; all workers share the task's loaders."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.sampler = Sampler(len(task.train), task.scheme, seed=task.config.seed)
        self._loaders: dict[int, Loader] = {}
        self._plans: dict[int, tuple[int, Any]] = {}
        super().__init__(task.model(), loss, self._cut, self._seed)

    def _loader(self, worker: int) -> Loader:
        if worker not in self._loaders:
            self._loaders[worker] = self.task.loader(worker, sampler=self.sampler, ahead=0)
        return self._loaders[worker]

    def draw(self, worker: int, step: int) -> None:
        """Take the images of the worker's next batch. The plan stays until the next one: a resumed run needs it."""
        if worker not in self._plans or self._plans[worker][0] != step:
            self._plans[worker] = (step, self._loader(worker).plan())

    def _cut(self, worker: int, step: int) -> Batch:
        planned, plan = self._plans[worker]
        assert planned == step, f"worker {worker}: drawn for step {planned}, asked for step {step}"
        return self._loader(worker).make(plan)

    def _seed(self, model: nn.Module, worker: int, step: int) -> None:
        seed_dropout(model, seed_of(self.task.config.seed, worker, step))

    def state_dict(self) -> dict[str, Any]:
        """Return the loaders' cursors, every worker's pool, and the batches that were drawn and not used."""
        plans = {w: [step, number, torch.from_numpy(rows.copy())] for w, (step, (number, rows)) in self._plans.items()}
        return {"sampler": self.sampler.state_dict(), "plans": plans}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.sampler.load_state_dict(state["sampler"])
        for worker, (step, number, rows) in state["plans"].items():
            self._loader(worker).number = number + 1
            self._plans[worker] = (step, (number, rows.numpy()))
