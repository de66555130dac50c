"""`easgd bench gradients`: gradients per second of the paper's CIFAR net in the simulator, one optimisation at a time.

The reference is a plain training loop on one thread with the paper's net written in torch. Every case runs in its own
process, because the allocator's settings apply to a whole process. Each case alternates with the reference, and the
ratio is the median over adjacent timings.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor, nn

from easgd.bench import Row, medians
from easgd.engines.simulate import ModelGradient, Simulation
from easgd.kernels.allocator import keep_freed_memory
from easgd.methods import EASGD
from easgd.models import cifar
from easgd.training.task import loss

BATCH, STEPS, WORKERS = 128, 8, 4
Run = Callable[[int], object]


def plain() -> nn.Sequential:
    """Return the paper's net written in torch: ReLU after each convolution, then pooling."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(64, 128, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(128, 64, 3), nn.ReLU(),
        nn.Flatten(), nn.Linear(256, 256), nn.ReLU(), nn.Dropout(0.5), nn.Linear(256, 10),
    )  # fmt: skip


def _images(layout: torch.memory_format) -> tuple[Tensor, Tensor]:
    return torch.rand(BATCH, 3, 28, 28).contiguous(memory_format=layout), torch.randint(0, 10, (BATCH,))


def _loop(net: nn.Module, layout: torch.memory_format) -> Run:
    # η = 0: training would change the weights, and with them the speed of the arithmetic.
    optimizer, batch = torch.optim.SGD(net.parameters(), lr=0.0), _images(layout)

    def run(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            loss(net, batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    return run


def _kept(net: nn.Module) -> Run:
    keep_freed_memory()
    return _loop(net, torch.channels_last)


def _simulated(parallel: int) -> Run:
    batch = _images(torch.channels_last)
    gradient = ModelGradient(cifar(), loss, lambda worker, step: batch)
    sim = Simulation(
        gradient, gradient.x0, EASGD(period=10), lr=0.0, workers=WORKERS, schedule="async", parallel=parallel
    )
    return sim.run


REFERENCE = "plain loop, one thread"
CASES: dict[str, Callable[[], Run]] = {
    REFERENCE: lambda: _loop(plain(), torch.contiguous_format),
    "channels_last images": lambda: _loop(plain(), torch.channels_last),
    "… and easgd.models.cifar": lambda: _loop(cifar(), torch.channels_last),
    "… and freed memory kept": lambda: _kept(cifar()),
    "… behind the simulator": lambda: _simulated(1),
    "… with parallel=2": lambda: _simulated(2),
}


def rows(rounds: int = 7) -> list[Row]:
    context = multiprocessing.get_context("spawn")
    ends: dict[str, Connection[Any, Any]] = {}
    for case in CASES:
        ends[case], theirs = context.Pipe()
        context.Process(target=_serve, args=(case, theirs), daemon=True).start()
        theirs.close()
        _rate(ends[case])  # warm-up
    out = []
    for case in CASES:
        if case != REFERENCE:
            # Rates, not seconds: the ratio of a row is value over reference.
            measure, reference = (partial(_rate, ends[name]) for name in (case, REFERENCE))
            rate, _, ratio = medians(measure, reference, rounds)
            out.append(Row(f"CIFAR net, {case}", rate, "gradients/s", rate / ratio, ratio))
    for end in ends.values():
        end.close()
    return out


def _rate(end: Connection[Any, Any]) -> float:
    end.send(STEPS)
    taken: float = end.recv()
    return STEPS / taken


def _serve(case: str, end: Connection[Any, Any]) -> None:
    """Receive a number of steps, run them and send the seconds they took, until the other end is closed."""
    torch.set_num_threads(1)
    run = CASES[case]()
    while True:
        try:
            steps: int = end.recv()
        except EOFError:
            return
        start = time.perf_counter()
        run(steps)
        end.send(time.perf_counter() - start)
