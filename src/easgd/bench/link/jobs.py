"""What is trained in the race: model, data, optimizer, and the measure of a model on data that it has not seen.

A job is the same for every contestant: the same initial point, the same batches for a rank, the same local optimizer
except for the momentum, which belongs to the method.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from easgd.bench.overhead import mlp
from easgd.data import CIFAR10, Loader, evaluation, load
from easgd.models import cifar, gpt

Batch = tuple[Tensor, Tensor]
State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Job(ABC):
    """One thing to train.

    `steps` of each worker, or `limit` seconds, are the budget; every so many steps the model is measured.
    """

    title: str
    measures: str
    targets: tuple[float, ...]
    steps: int
    every: int
    limit: float
    batch: int
    momentum: ClassVar[bool] = True
    """Whether the local optimizer is SGD, whose momentum a method may choose."""

    @abstractmethod
    def model(self) -> nn.Module:
        """Return the model at its initial point: the same in every process."""

    @abstractmethod
    def optimizer(self, model: nn.Module, momentum: float) -> torch.optim.Optimizer:
        """Return the local optimizer."""

    @abstractmethod
    def batches(self, rank: int, seed: int) -> Iterator[Batch]:
        """Yield the batches of a worker without end."""

    @abstractmethod
    def measure(self, state: State) -> float:
        """Return the error or loss of a model on data that it was not trained on."""

    def loss(self, model: Callable[[Tensor], Any], batch: Batch) -> Tensor:
        """Return the mean loss over a batch."""
        return nn.functional.cross_entropy(model(batch[0]).flatten(0, -2), batch[1].flatten())


@dataclass(frozen=True)
class Images(Job):
    """CIFAR-10 with the paper's crops; Nesterov's momentum, or plain SGD with the rate of the same effect."""

    network: Callable[[], nn.Module] = cifar
    lr: float = 0.01
    test_images: int = 2000

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return self.network()

    def optimizer(self, model: nn.Module, momentum: float) -> torch.optim.Optimizer:
        # Momentum δ multiplies the steady step by 1/(1 − δ): without it, η is larger by as much as with δ = 0.9.
        lr = self.lr if momentum else 10 * self.lr
        return torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum, nesterov=momentum > 0)

    def batches(self, rank: int, seed: int) -> Iterator[Batch]:
        scheme = replace(CIFAR10, batch=self.batch)
        # Machines share no file of cursors: a seed for each rank gives each another order.
        return Loader(load("cifar10", "train"), scheme, worker=rank, seed=seed + 1000 * rank)

    @torch.no_grad()
    def measure(self, state: State) -> float:
        model = self.model().eval()
        model.load_state_dict(state)
        test = list(evaluation(load("cifar10", "test"), CIFAR10.crop, limit=self.test_images))
        wrong = sum(int((model(images).argmax(1) != labels).sum()) for images, labels in test)
        return wrong / sum(len(labels) for _, labels in test)


@dataclass(frozen=True)
class Text(Job):
    """A GPT of 3.2 M parameters with AdamW."""

    momentum: ClassVar[bool] = False
    lr: float = 1e-3
    length: int = 64

    def model(self) -> nn.Module:
        torch.manual_seed(0)
        return gpt.GPT(gpt.text()[2], self.length, layers=4, heads=4, width=256)

    def optimizer(self, model: nn.Module, momentum: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=self.lr, weight_decay=0.1)

    def batches(self, rank: int, seed: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(1000 * seed + rank)
        while True:
            yield gpt.draw(gpt.text()[0], self.batch, self.length, generator)

    @torch.no_grad()
    def measure(self, state: State) -> float:
        model = self.model().eval()
        model.load_state_dict(state)
        generator = torch.Generator().manual_seed(-1)
        batches = [gpt.draw(gpt.text()[1], 32, self.length, generator) for _ in range(8)]
        return sum(self.loss(model, batch).item() for batch in batches) / len(batches)


JOBS: dict[str, Job] = {
    "cifar": Images("CIFAR net, 0.35 M parameters", "test error", (0.40, 0.30), 4000, 80, 120, 64, cifar, 0.02),
    "gpt": Text("character GPT, 3.2 M parameters", "validation loss", (2.5, 2.4), 400, 20, 45, 8),
    "mlp": Images("MLP on CIFAR-10, 9 M parameters", "test error", (0.60, 0.55), 1000, 20, 40, 128, mlp, 0.02),
}
