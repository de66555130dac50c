"""What every rank of a torchrun job does in `test_collective`: train together, train in pairs, lose a rank."""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import easgd
from easgd import checkpoint
from easgd.errors import RankLostError, SettingError

STEPS, LR = 6, 0.05


def net() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def batch(worker: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    some = torch.Generator().manual_seed(1000 * worker + step)
    return torch.randn(8, 5, generator=some), torch.randn(8, 3, generator=some)


def train(method, data, steps=STEPS, **settings):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    worker = easgd.attach(model, optimizer, method, **settings)
    for step in range(steps):
        x, y = batch(data, step)
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return worker


def refusal(method) -> str:
    try:
        train(method, 0)
    except SettingError as error:
        return str(error)
    return ""


def main(folder: str) -> None:
    rank = int(os.environ["RANK"])
    elastic = easgd.EASGD(period=2, moving_rate=0.2, sync=True)
    found = {"refused": refusal(easgd.EASGD(period=2))}
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    for name, overlap in (("hidden", True), ("blocking", False)):
        worker = train(elastic, rank, overlap=overlap)
        found[name] = worker.center()
        found[f"hides {name}"] = worker.exchange.hides
        worker.close()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    worker = train(elastic, rank, process_group=pairs[rank // 2])
    found["pair"], found["place"] = worker.center(), (worker.rank, worker.workers)
    worker.close()
    spread = nn.parallel.DistributedDataParallel(net())
    worker = easgd.attach(spread, torch.optim.SGD(spread.parameters(), lr=LR), easgd.EASGD(period=2))
    found["ddp alone"] = worker.context.alone
    dist.barrier()
    try:
        # Rank 3 takes one exchange less, and ends without a word.
        worker = train(elastic, rank, steps=2 if rank == 3 else 5, deadline=20)
        if rank != 3:
            found["lost"] = ""
    except RankLostError as error:
        found["lost"] = str(error)
    checkpoint.save(Path(folder, f"rank-{rank}"), found)
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
