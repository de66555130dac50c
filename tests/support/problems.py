"""Training that worker processes run for the conformance tests, and the same problem for the simulator."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import nn

import easgd
from easgd import checkpoint
from easgd.worker import exchange
from launching import until, wait_for_all_workers

STEPS, WORKERS = 12, 3
wait_for_all_workers()
X = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (64,), generator=torch.Generator().manual_seed(2))
METHODS = {
    "easgd": easgd.EASGD(period=3, beta=0.8),
    "easgd τ=1": easgd.EASGD(period=1, moving_rate=0.3),
    "easgd rho": easgd.EASGD(period=2, rho=2.0),
    "eamsgd": easgd.EAMSGD(period=2, moving_rate=0.3, momentum=0.7),
    "downpour": easgd.Downpour(period=2),
    "mdownpour": easgd.MDownpour(momentum=0.5),
    "adownpour": easgd.ADownpour(period=2),
    "mvadownpour": easgd.MVADownpour(period=2, rate=0.1),
    "admm": easgd.ADMM(0.5),
    "admm τ=3": easgd.ADMM(0.5, period=3),
    "averaged easgd": easgd.averaged(easgd.EASGD(period=2)),
    "averaged admm": easgd.averaged(easgd.ADMM(0.5), rate=0.2),
    "localsgd": easgd.LocalSGD(period=3, sync=False, first_phase=2),
    "diloco": easgd.DiLoCo(period=3),
    "diloco adam": easgd.DiLoCo(period=2, outer="adam", first_phase=2),
    "asyncdiloco": easgd.AsyncDiLoCo(period=2, outer_lr=0.5, every=2, staleness=0.5),
    "easgd P=3": easgd.EASGD(period=3, moving_rate=0.3, fragments=3),
    "eamsgd P=2 k=3": easgd.EAMSGD(period=4, moving_rate=0.3, momentum=0.7, fragments=2, delay=3),
    "adownpour P=2": easgd.ADownpour(period=2, fragments=2),
    "admm P=2": easgd.ADMM(0.5, period=2, fragments=2),
}


def fits(method: easgd.Method, schedule: str) -> bool:
    """Whether a method is defined on a schedule."""
    return method.synchronous if schedule == "sync" else not getattr(method, "sync", False)


def fitting(schedule: str) -> dict[str, easgd.Method]:
    """The methods of a schedule."""
    return {name: method for name, method in METHODS.items() if fits(method, schedule)}


def net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def batch(worker: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(1000 * worker + step))
    return X[rows], Y[rows]


def loss(model: nn.Module, xy: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    return nn.functional.cross_entropy(model(xy[0]), xy[1])


def decaying(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, easgd.decay(0.2))


def conform(folder: str, overlap: bool | str) -> None:
    """Train with every method in turn, each with a center of its own, and leave what came out."""
    torch.set_num_threads(1)
    exchange.idle_cores = lambda workers: False  # "auto" moves in place, whatever this machine has
    rank, run = int(os.environ["EASGD_RANK"]), Path(os.environ["EASGD_RUN"].removeprefix("local:"))
    for name, method in fitting(os.environ["EASGD_SCHEDULE"]).items():
        (run / name).mkdir(exist_ok=True)
        os.environ["EASGD_RUN"] = str(run / name)
        model = net()
        optimizer = method.optimizer(list(model.parameters()), 0.1, 1e-3)
        scheduler = decaying(optimizer)
        worker = easgd.attach(model, optimizer, method, overlap=overlap, deadline=60)
        for step in range(STEPS):
            loss(model, batch(rank, step)).backward()
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
        state = {"local": list(model.parameters()), "center": list(worker.center().values()), "clock": worker.clock}
        checkpoint.save(Path(folder) / f"{name}-{rank}", state)
        await_all(folder, name)
        worker.close()


def await_all(folder: str, name: str, workers: int = WORKERS) -> None:
    """Wait until all have left what came out.

    Who leaves before the others' last exchange changes how many share the center, and with it their rate.
    """
    until(lambda: all((Path(folder) / f"{name}-{rank}").exists() for rank in range(workers)), f"all of {name}")


def simulated(name: str, schedule: str) -> easgd.Simulation:
    """The same training on the virtual clock."""
    gradient = easgd.ModelGradient(net(), loss, batch)
    sim = easgd.Simulation(
        gradient, gradient.x0, METHODS[name], lr=0.1, workers=WORKERS, weight_decay=1e-3, scheduler=decaying,
        schedule=schedule,
    )  # fmt: skip
    sim.run(STEPS * (1 if schedule == "sync" else WORKERS))
    return sim
