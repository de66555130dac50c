"""What is trained: data, network, loss and the measure of a center, built from the settings.

A task is the same in every process that builds it from the same settings: the network is drawn from its own seed, the
order of the data follows from seed and worker.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from easgd.data import CIFAR10, DIGITS, ImageFile, Loader, Sampler, Scheme, evaluation, load
from easgd.data.seeds import DROPOUT
from easgd.errors import refuse, unknown
from easgd.learning_rate import Stagnation, decay
from easgd.machine import memory
from easgd.models import build, cifar, digits_conv, digits_mlp, imagenet
from easgd.training.config import Config

NETWORKS = {"digits-conv": digits_conv, "digits-mlp": digits_mlp, "cifar": cifar, "imagenet": imagenet}
Batch = tuple[Tensor, Tensor]


WORKER_BYTES = 50_000
"""What a simulated worker takes besides its vectors: its optimizer, its sampler, its place in the queue."""


class Task:
    """The data and the network of a resolved `Config`."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.train, self.test = load(config.data, "train"), load(config.data, "test")
        self.network = self.model()
        self.scheme = scheme_of(config, self.train, self.network.input_shape.size)
        outputs = self.network(torch.zeros(1, *self._input())).shape[1]
        if len(self.train.classes) > outputs or self.train.channels != self.network.input_shape.channels:
            held = f"{config.data} has {len(self.train.classes)} classes and {self.train.channels} channels"
            raise refuse("network", config.network, held, "choose a network that fits")

    def check_memory(self) -> None:
        """Refuse more workers than fit on the virtual clock, each with its vectors: x, a gradient, an optimizer's."""
        workers = self.config.workers or 1
        each = WORKER_BYTES + 3 * 4 * sum(parameter.numel() for parameter in self.network.parameters())
        _, free = memory()
        if self.config.engine == "simulate" and workers * each > free:
            why = f"on the virtual clock they need {workers * each / 1e9:.3g} GB, and {free / 1e9:.3g} are free"
            raise refuse("workers", workers, why, f"take at most {free // each}, or a smaller network")

    def _input(self) -> tuple[int, int, int]:
        shape = self.network.input_shape
        return shape.channels, shape.size, shape.size

    def model(self, worker: int | None = None) -> Any:
        """Return a new network at the run's initial point, or at a worker's own; the same in every call."""
        seed = self.config.init_seed + (0 if worker is None else 1 + worker)
        name, settings = self.config.network or "", {"seed": seed, "gain": self.config.gain}
        if name in NETWORKS:
            return NETWORKS[name](**settings)  # type: ignore[arg-type]
        if not name.startswith("("):
            raise unknown("network", name, NETWORKS)
        return build(name, **settings)  # type: ignore[arg-type]

    def optimizer(self, params: list[Tensor]) -> torch.optim.Optimizer:
        """Return the local optimizer: the paper's, or another of torch."""
        lr, wd = self.config.lr or 0.0, self.config.weight_decay
        match self.config.optimizer:
            case "paper":
                return self.config.make_method().optimizer(params, lr, wd)
            case "sgd":
                return torch.optim.SGD(params, lr=lr, weight_decay=wd)
            case "nesterov":
                return torch.optim.SGD(params, lr=lr, momentum=0.9, nesterov=True, weight_decay=wd)
            case "adam":
                return torch.optim.Adam(params, lr=lr, weight_decay=wd)
            case _:
                return torch.optim.AdamW(params, lr=lr, weight_decay=wd)

    def scheduler(self, optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler | None:
        """Return the schedule of η on a worker's own clock; None if η is constant."""
        config = self.config
        if config.decay == "stagnation":
            return Stagnation(optimizer, window=self.epoch_steps)
        if config.has_constant_rate:
            return None
        gamma = config.gamma if config.decay == "sqrt" else 0.0
        return torch.optim.lr_scheduler.LambdaLR(optimizer, decay(gamma, config.warmup, config.drop))

    @property
    def epoch_steps(self) -> int:
        """Batches that make up as many images as the set has."""
        return max(1, len(self.train) // self.scheme.batch)

    def loader(
        self, worker: int, *, sampler: Sampler | None = None, cursors: str | os.PathLike[str] | None = None,
        ahead: int = 4,
    ) -> Loader:  # fmt: skip
        """Return one worker's endless batches."""
        seed = self.config.seed
        return Loader(self.train, self.scheme, worker=worker, seed=seed, sampler=sampler, cursors=cursors, ahead=ahead)

    @property
    def most_steps(self) -> float:
        """Steps of all workers together that the budget allows; infinite if only time or error ends it."""
        config, workers = self.config, self.config.workers or 1
        by_steps = config.steps * workers if config.steps else float("inf")
        by_epochs = config.epochs * len(self.train) / self.scheme.batch if config.epochs else float("inf")
        return min(by_steps, max(1.0, by_epochs))

    def measure(self, state: dict[str, Tensor]) -> dict[str, float]:
        """Return training loss on a fixed subset, test loss and test error of a center, all on center crops."""
        self.network.load_state_dict(state)
        self.network.eval()
        subset, crop = self.config.train_subset, self.scheme.crop
        train_loss, _ = _mean(self.network, evaluation(self.train, crop, limit=subset))
        test_loss, test_error = _mean(self.network, evaluation(self.test, crop))
        return {"train_loss": train_loss, "test_loss": test_loss, "test_error": test_error}


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Cross-entropy; the l₂ term is the optimizer's weight decay."""
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


@torch.no_grad()
def _mean(model: nn.Module, batches: Iterator[Batch]) -> tuple[float, float]:
    """Return the mean loss and the share of wrong answers."""
    total, wrong, count = 0.0, 0, 0
    for images, labels in batches:
        logits = model(images)
        total += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
        wrong += int((logits.argmax(1) != labels).sum())
        count += len(labels)
    return total / count, wrong / count


def scheme_of(config: Config, file: ImageFile, size: int) -> Scheme:
    """Return how batches are drawn: as in the paper, with crops where images are larger than the network's input."""
    known = {"digits": DIGITS, "cifar10": CIFAR10}
    if config.data in known:
        scheme = known[config.data]
    else:
        scheme = Scheme(crop=None if file.shape == (size, size) else size, flip=True, shards=file.shape is None)
    scheme = dataclasses.replace(scheme, batch=config.batch or scheme.batch)
    # The chunks of all loaders together must not exceed the set.
    most = max(1, len(file) // scheme.loaders)
    return dataclasses.replace(scheme, chunk=min(scheme.chunk, most))


def seed_of(seed: int, worker: int, step: int) -> int:
    """Return the seed of one step's dropout, a hash of all three."""
    return int(np.random.SeedSequence([seed, DROPOUT, worker, step]).generate_state(1, np.uint64)[0] >> 1)
