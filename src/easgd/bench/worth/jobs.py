"""What is trained to find the worth of a worker: a small GPT with AdamW, and the CIFAR net with Nesterov SGD."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from easgd.engines.simulate import ModelGradient
from easgd.models.gpt import GPT, draw, next_character_loss, text

WARM_UP = 0.05


class Job(ABC):
    """A model, its data and optimizer.

    Attributes:
        name: on the command line.
        title: in a table.
        unit: of what `measure` returns; less is better.
        lr: the learning rate of one worker.
        clip: largest norm of a gradient; None does not clip.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    unit: ClassVar[str]
    lr: ClassVar[float]
    clip: ClassVar[float | None] = None

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module, Any], Tensor], seed: int) -> None:
        self.model, self.seed = model, seed
        self._gradient = ModelGradient(model, loss, self.batch)
        self.x0 = self._gradient.x0

    @abstractmethod
    def batch(self, worker: int, step: int) -> Any:
        """Return the batch of one worker's step."""

    @abstractmethod
    def optimizer(self, params: list[Tensor], lr: float) -> torch.optim.Optimizer:
        """Return the optimizer that a user would take for one process."""

    @abstractmethod
    def _measure(self, model: nn.Module) -> float: ...

    def gradient(self, x: Tensor, worker: int, step: int) -> Tensor:
        """Return one worker's gradient."""
        return self._clipped(self._gradient(x, worker, step))

    def mean_gradient(self, x: Tensor, step: int, workers: int) -> Tensor:
        """Return what data-parallel training steps with: the mean over the workers' batches, clipped as a whole."""
        total = torch.zeros_like(x)
        for worker in range(workers):
            total += self._gradient(x, worker, step)
        return self._clipped(total.div_(workers))

    def _clipped(self, g: Tensor) -> Tensor:
        if self.clip is not None and (norm := float(g.norm())) > self.clip:
            g.mul_(self.clip / norm)
        return g

    def schedule(self, steps: int) -> Callable[[int], float]:
        """Return η's factor at each step: a short linear start, then half a cosine down to a tenth."""
        first = max(1, round(WARM_UP * steps))

        def factor(step: int) -> float:
            if step < first:
                return (step + 1) / first
            return 0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, (step - first) / max(1, steps - first))))

        return factor

    @torch.no_grad()
    def measure(self, x: Tensor) -> float:
        """Return the loss or error at x on data that no worker trains on."""
        model, vector, _ = self._gradient.packed()
        vector.copy_(x)
        model.eval()
        try:
            return self._measure(model)
        finally:
            model.train()


class Text(Job):
    """A GPT of 0.8 million parameters on Python's manual: 12 windows of 64 characters a worker and step, AdamW."""

    name = "gpt"
    title = "Character GPT, 0.8 M parameters, AdamW"
    unit = "validation loss"
    lr = 1e-3
    clip = 1.0

    def __init__(self, seed: int) -> None:
        self.train, self.test, alphabet = text()
        torch.manual_seed(seed)
        super().__init__(GPT(alphabet), next_character_loss, seed)

    def batch(self, worker: int, step: int) -> tuple[Tensor, Tensor]:
        return draw(self.train, 12, 64, _seeded(self.seed, worker, step))

    def optimizer(self, params: list[Tensor], lr: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(params, lr=lr, betas=(0.9, 0.99), weight_decay=0.1)

    def _measure(self, model: nn.Module) -> float:
        same = _seeded(-1)
        losses = [float(next_character_loss(model, draw(self.test, 64, 64, same))) for _ in range(20)]
        return sum(losses) / len(losses)


class Images(Job):
    """The paper's CIFAR net on CIFAR-10, 128 images a worker and step, Nesterov SGD; without its dropout."""

    name = "cifar10"
    title = "CIFAR net, Nesterov SGD"
    unit = "test error"
    lr = 0.01

    def __init__(self, seed: int) -> None:
        from easgd.training.config import Config
        from easgd.training.task import Task, loss

        self.task = Task(Config(data="cifar10", seed=seed).resolved())
        self._loaders: dict[int, Any] = {}
        super().__init__(self.task.model().eval(), loss, seed)

    def batch(self, worker: int, step: int) -> Any:
        if worker not in self._loaders:
            self._loaders[worker] = iter(self.task.loader(worker))
        return next(self._loaders[worker])

    def optimizer(self, params: list[Tensor], lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=lr, momentum=0.9, nesterov=True, weight_decay=1e-4)

    def _measure(self, model: nn.Module) -> float:
        return self.task.measure(model.state_dict())["test_error"]


def _seeded(*numbers: int) -> torch.Generator:
    """A generator that these numbers decide alone, so that a batch does not depend on what was drawn before."""
    return torch.Generator().manual_seed(hash(numbers) & 0x7FFF_FFFF_FFFF_FFFF)


class JobClass(Protocol):
    """A class of jobs: a seed makes one."""

    title: str
    unit: str

    def __call__(self, seed: int) -> Job: ...


JOBS: dict[str, JobClass] = {Text.name: Text, Images.name: Images}
