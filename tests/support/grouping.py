"""Training in groups of two ranks, and the same training in one process."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call

import easgd
from easgd import checkpoint
from easgd.center.layout import Layout
from launching import wait_for_all_workers

WORKERS, RANKS, STEPS, LR, BATCH = 2, 2, 7, 0.05, 8
wait_for_all_workers()
EASGD = easgd.EASGD(period=2, moving_rate=0.3)
EAMSGD = easgd.EAMSGD(period=2, moving_rate=0.3, momentum=0.8)
CASES = {
    "plain": ("plain", EASGD),
    "ddp": ("ddp", EASGD),
    "ddp-eamsgd": ("ddp", EAMSGD),
    "fsdp": ("fsdp", EASGD),
    "fsdp-eamsgd": ("fsdp", EAMSGD),
    "fsdp-downpour": ("fsdp", easgd.Downpour(period=2)),
    "tensors": ("tensors", EASGD),
}


def net() -> nn.Sequential:
    """Seven and three rows: over two ranks they are uneven shards."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Tanh(), nn.Linear(7, 3))


def even_net() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))


def built(kind: str) -> nn.Module:
    return even_net() if kind == "tensors" else net()


def batch(worker: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    some = torch.Generator().manual_seed(1000 * worker + step)
    return torch.randn(BATCH, 5, generator=some), torch.randn(BATCH, 3, generator=some)


def spread(kind: str, model: nn.Module) -> nn.Module:
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if kind == "plain":
        return model
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (RANKS,))
    if kind == "fsdp":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model[0], mesh=mesh)
        return fully_shard(model, mesh=mesh)
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


class Counting:
    """Counts the bytes that each collective of a process group is given."""

    def __init__(self, link, calls) -> None:
        self.link, self.calls = link, calls

    def __getattr__(self, name):
        def call(tensor, *args):
            self.calls[name] += tensor.numel() * tensor.element_size()
            return getattr(self.link, name)(tensor, *args)

        return call


def train_all(folder: str, names: Sequence[str] = tuple(CASES)) -> None:
    """Train these cases in this group, one after the other, each with a center of its own."""
    dist.init_process_group("gloo")
    for name in names:
        train(name, folder)


def train(name: str, folder: str) -> None:
    kind, method = CASES[name]
    model = spread(kind, built(kind))
    momentum = {"momentum": 0.8, "nesterov": True} if "eamsgd" in name else {}
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, **momentum)
    worker = easgd.attach(model, optimizer, method, name=name)
    calls: Counter[str] = Counter()
    group = worker.group.group
    group._links["exchange"] = Counting(group._link("exchange"), calls)
    for step in range(STEPS):
        x, y = batch(worker.rank, step)
        if kind != "tensors":  # each rank takes its half; ranks that split tensors see the same batch
            half = slice(worker.member * BATCH // RANKS, (worker.member + 1) * BATCH // RANKS)
            x, y = x[half], y[half]
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    parts = Layout.of(worker.tensors).split(worker.state.local())  # the paper's x, not the look-ahead point
    state = {"x": parts, "center": worker.center(), "calls": dict(calls)}
    checkpoint.save(Path(folder, f"{name}-{worker.rank}-{worker.member}"), state)
    dist.barrier()
    worker.close()


def alone(name: str) -> tuple[dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]:
    """The center and every worker's variable of the same training on whole models, in the simulator's round-robin."""
    kind, method = CASES[name]
    model = built(kind)
    shapes = {n: p.shape for n, p in model.named_parameters()}

    def named(x):
        pieces = x.split([s.numel() for s in shapes.values()])
        return {n: piece.view(s) for (n, s), piece in zip(shapes.items(), pieces, strict=True)}

    def gradient(x, worker, step):
        x = x.detach().requires_grad_()
        inputs, target = batch(worker, step)
        loss = nn.functional.mse_loss(functional_call(model, named(x), inputs), target)
        return torch.autograd.grad(loss, x)[0]

    x0 = torch.cat([p.detach().flatten() for p in model.parameters()])
    path = easgd.simulate(gradient, x0, method, lr=LR, workers=WORKERS, steps=WORKERS * STEPS)
    return named(path.center[-1]), [named(x) for x in path.local[-1]]


def lose_a_rank(folder: str) -> None:
    """Two DDP groups: in the first, rank 1 is killed after its fifth step; the second trains until it is back."""
    dist.init_process_group("gloo")
    model = spread("ddp", net())
    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=1))
    rank, member, again = worker.rank, worker.member, worker.context.incarnation > 0
    if again:
        moved = bool((worker.replica.read() - start).abs().max() > 0)
        Path(folder, f"back-{member}").write_text(str(moved))
    was_alone, slowest, last = False, 0.0, time.perf_counter()
    for step in range(1_000_000):
        x, y = batch(rank, step)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and member == 1 and step == 5 and not again:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 0 and again and step == 5:
            break
        was_alone |= worker.client.living == 1 and step > 5
        if rank == 1 and was_alone:
            slowest = max(slowest, time.perf_counter() - last)
            if worker.client.living == 2:  # both ranks know it from the same exchange
                break
        last = time.perf_counter()
    if rank == 1 and member == 0:
        Path(folder, "steps").write_text(f"{step} {slowest}")
