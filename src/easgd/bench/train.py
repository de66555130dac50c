"""`easgd bench train`: images per second of `easgd train` with two workers, relative to two isolated processes.

It uses CIFAR-10 if this machine has it, else generated images of the same shape. The run writes records, snapshots of
the center and checkpoints, as a user's does. The isolated processes run the same loop with the same loader and no
center. The two take turns.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import torch

from easgd.bench import Row, in_processes
from easgd.data import available, make_synthetic
from easgd.kernels.allocator import keep_freed_memory
from easgd.records import Step
from easgd.training.config import Config
from easgd.training.task import Task, loss
from easgd.training.train import train

WORKERS, SECONDS, ROUNDS, WARM = 2, 14.0, 5, 2.0


def config() -> Config:
    """Return the settings: EAMSGD, τ = 10, on the CIFAR net; 4 snapshots and a checkpoint in every run."""
    if "cifar10-train" not in available():
        for split, count in (("train", 5000), ("test", 500)):
            make_synthetic(count=count, name="cifar-like", split=split)
    data = "cifar10" if "cifar10-train" in available() else "cifar-like"
    return Config(
        data=data, network="cifar", workers=WORKERS, lr=0.005, seconds=SECONDS, evaluate="after",
        evaluate_every=SECONDS / 4, checkpoint_every=SECONDS / 2,
    ).resolved()  # fmt: skip


def rows() -> list[Row]:
    settings, samples = config(), []
    for _ in range(ROUNDS):
        samples.append((_trained(settings), _isolated(settings)))
    rate = statistics.median(ours for ours, _ in samples)
    ratio = statistics.median(ours / alone for ours, alone in samples)
    return [Row(f"easgd train, {settings.data}, CIFAR net, EAMSGD τ=10", rate, "images/s", rate / ratio, ratio)]


def _trained(settings: Config) -> float:
    with tempfile.TemporaryDirectory() as folder:
        run = train(settings, Path(folder) / "run")
        steps = [record.time for record in run.records() if isinstance(record, Step) and record.time > WARM]
        return len(steps) * (settings.batch or 0) / (SECONDS - WARM)


def _isolated(settings: Config) -> float:
    return float(sum(in_processes(_alone, WORKERS, settings, timeout=300)))


def _alone(settings: Config, rank: int, barrier: Barrier, queue: Any) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    task = Task(settings)
    model = task.model()
    optimizer = task.optimizer(list(model.parameters()))
    with task.loader(rank) as batches:
        barrier.wait()
        begin, count = time.perf_counter(), 0
        for batch in batches:
            value = loss(model, batch)
            optimizer.zero_grad()
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            float(value.detach())  # a run records the loss of every step
            elapsed = time.perf_counter() - begin
            if elapsed > SECONDS:
                break
            count += elapsed > WARM
    queue.put(count * (settings.batch or 0) / (SECONDS - WARM))
