"""`easgd bench overhead`: images per second of two local workers beside two processes that never communicate.

In the same run stand what one would use instead: DistributedDataParallel on gloo, and plain averaging of the
parameters every ten steps. The cases take turns in the same two processes, one thread each.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from easgd.bench import Row
from easgd.methods import EAMSGD, EASGD, Method
from easgd.models import cifar
from easgd.worker.attach import attach

WORKERS, BATCH, ROUNDS = 2, 128, 5
STEPS = {"CIFAR net": 10, "9 M MLP": 10}


def mlp() -> nn.Module:
    """The 2352-2048-2048-10 network of 9 M parameters."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(2352, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)
    )


NETS: dict[str, Callable[[], nn.Module]] = {"CIFAR net": cifar, "9 M MLP": mlp}
METHODS: dict[str, Method] = {
    "EASGD τ=10": EASGD(period=10),
    "EASGD τ=1": EASGD(period=1),
    "EAMSGD τ=10": EAMSGD(period=10, momentum=0.9),
}


def rows() -> list[Row]:
    """Measure every case of both networks."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        context = multiprocessing.get_context("spawn")
        barrier, queue = context.Barrier(WORKERS), context.Queue()
        processes = [context.Process(target=_worker, args=(folder, r, barrier, queue)) for r in range(WORKERS)]
        for process in processes:
            process.start()
        results = [queue.get(timeout=900) for _ in processes]
        for process in processes:
            process.join()
    out = []
    for net in NETS:
        rates = {case: sum(r[net, case] for r in results) for n, case in results[0] if n == net}
        reference = rates.pop("isolated")
        out += [Row(f"{net}, {case}", rate, "images/s", reference, rate / reference) for case, rate in rates.items()]
    return out


def _worker(folder: str, rank: int, barrier: Barrier, queue: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=WORKERS)
    results = {}
    for net, make in NETS.items():
        runs = dict(_runs(make, net, folder, rank))
        rates: dict[str, list[float]] = {case: [] for case in runs}
        for round_ in range(ROUNDS + 1):
            for case, run in runs.items():
                barrier.wait()
                start = time.perf_counter()
                for _ in range(STEPS[net]):
                    run()
                spent = time.perf_counter() - start
                if round_:  # the first round warms up
                    rates[case].append(STEPS[net] * BATCH / spent)
        results.update({(net, case): statistics.median(samples) for case, samples in rates.items()})
    queue.put(results)
    dist.destroy_process_group()


def _runs(make: Callable[[], nn.Module], net: str, folder: str, rank: int) -> Iterator[tuple[str, Callable[[], None]]]:
    """One training step of each case; every case has a model of its own."""
    images = torch.rand(BATCH, 3, 28, 28).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (BATCH,))
    plain = make()
    yield "isolated", _step(plain, torch.optim.SGD(plain.parameters(), lr=0.001), images, labels)
    for name, method in METHODS.items():
        model = make()
        optimizer = method.optimizer(list(model.parameters()), 0.001)
        run = Path(folder) / f"{net}-{name}".replace(" ", "-")
        run.mkdir(exist_ok=True)
        os.environ.update(EASGD_RUN=str(run), RANK=str(rank), WORLD_SIZE=str(WORKERS), EASGD_OUT=str(run / "out"))
        attach(model, optimizer, method)
        yield name, _step(model, optimizer, images, labels)
    model = make()
    ddp = nn.parallel.DistributedDataParallel(model)
    yield "DistributedDataParallel", _step(ddp, torch.optim.SGD(ddp.parameters(), lr=0.001), images, labels)
    averaged = make()
    yield "averaging every 10 steps", _averaging(averaged, images, labels)


def _step(model: nn.Module, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> Callable[[], None]:
    def step() -> None:
        nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step


def _averaging(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], None]:
    step = _step(model, torch.optim.SGD(model.parameters(), lr=0.001), images, labels)
    clock = 0

    def run() -> None:
        nonlocal clock
        step()
        clock += 1
        if clock % 10 == 0:
            with torch.no_grad():
                for p in model.parameters():
                    dist.all_reduce(p)
                    p.div_(WORKERS)

    return run
