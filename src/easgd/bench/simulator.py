"""`easgd bench simulator`: the overhead of the simulator relative to a plain loop of gradient and optimizer step.

Two extremes: the paper's CIFAR net, where the gradient dominates, and one parameter, where the simulator does.
"""

from __future__ import annotations

import time
from functools import partial

import torch
from torch import Tensor

import easgd
from easgd.bench import Row, side_by_side
from easgd.engines.simulate import ModelGradient, Simulation
from easgd.engines.simulate.engine import ScheduleName
from easgd.models import cifar
from easgd.training.task import loss

BATCH = 128
WORKERS = 4


def rows() -> list[Row]:
    torch.set_num_threads(1)
    return [*_cifar_rows(), *_event_rows()]


def _cifar_rows(steps: int = 4) -> list[Row]:
    images = torch.rand(BATCH, 3, 28, 28).to(memory_format=torch.channels_last)
    batch = (images, torch.randint(0, 10, (BATCH,)))
    gradient = ModelGradient(cifar(), loss, lambda worker, step: batch)
    # The plain loop uses the simulator's own model: two instances of a net differ in speed by more than the overhead.
    net, x, g = gradient.packed()
    # η = 0: training would change the weights, and with them the speed of the arithmetic.
    optimizer = torch.optim.SGD([x], lr=0.0)
    x.grad = g

    def bare() -> None:
        for _ in range(steps):
            g.zero_()
            loss(net, batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    out = []
    for method in (easgd.EASGD(period=1), easgd.EAMSGD(period=10), easgd.Downpour(period=1)):
        sim = Simulation(gradient, gradient.x0, method, lr=0.0, workers=WORKERS, schedule="async")
        value, reference, ratio = side_by_side(partial(sim.run, steps), bare, repeat=15)
        case = f"CIFAR net ({gradient.x0.numel():,} parameters), {method.name} τ={method.period}, {WORKERS} workers"
        out.append(Row(case, value / steps, "s/step", reference / steps, ratio))
    return out


def _event_rows(steps: int = 4000) -> list[Row]:
    def gradient(x: Tensor, worker: int, step: int) -> Tensor:
        return x * 0.5

    x = torch.ones(1, dtype=torch.float64)
    optimizer = torch.optim.SGD([x], lr=0.01, foreach=False)

    def bare() -> None:
        for step in range(steps):
            x.grad = gradient(x, 0, step)
            optimizer.step()

    out = []
    schedules: tuple[ScheduleName, ...] = ("round-robin", "async", "sync")
    for schedule in schedules:
        method = easgd.EASGD(period=1)
        sim = Simulation(gradient, x.clone(), method, lr=0.01, workers=WORKERS, schedule=schedule)
        ticks = steps // WORKERS if schedule == "sync" else steps
        mine, plain, ratio = side_by_side(partial(sim.run, ticks), bare)
        out.append(Row(f"one parameter, {schedule}: steps", steps / mine, "steps/s", steps / plain, 1 / ratio))
        if schedule == "async":
            before, start = sim.schedule.events, time.perf_counter()  # type: ignore[attr-defined]
            sim.run(steps)
            rate = (sim.schedule.events - before) / (time.perf_counter() - start)  # type: ignore[attr-defined]
            out.append(Row("one parameter, async: events", rate, "events/s", 20_000, rate / 20_000))
    return out
