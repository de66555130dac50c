"""What is trained while workers are killed: the same steps under `easgd.run` and under torchrun with DDP.

torchrun --nproc-per-node 2 --max-restarts 1000 -m easgd.bench.chaos.jobs FOLDER
python -m easgd.bench.chaos.jobs FOLDER RANK LIGHTHOUSE     torchft's LocalSGD, where torchft is installed
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

PERIOD = 10
STOP = "stop"


def model_and_step() -> tuple[nn.Module, torch.optim.Optimizer, Callable[[nn.Module], None]]:
    """A network, its optimizer, and the gradient of one batch."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))

    def gradient(module: nn.Module) -> None:
        images, labels = torch.randn(64, 128), torch.randint(10, (64,))
        nn.functional.cross_entropy(module(images), labels).backward()  # type: ignore[no-untyped-call]

    return net, torch.optim.SGD(net.parameters(), lr=0.01), gradient


def tell(folder: Path, rank: int) -> None:
    """Say that this rank trains, and by which process."""
    scratch = folder / f".pid-{rank}.{os.getpid()}"
    scratch.write_text(str(os.getpid()))
    scratch.rename(folder / f"pid-{rank}")


def elastic(folder: str) -> None:
    """A worker of `easgd.run`: trains until it is told to stop, and notes the clock of every exchange."""
    import easgd

    path = Path(folder)
    net, optimizer, gradient = model_and_step()
    worker = easgd.attach(net, optimizer, easgd.EASGD(period=PERIOD))
    tell(path, worker.rank)
    reached = path / f"reached-{worker.rank}-{worker.context.incarnation}"
    with open(reached, "wb", buffering=0) as file:
        while not (path / STOP).exists():
            for _ in range(PERIOD):
                optimizer.zero_grad()
                gradient(net)
                optimizer.step()
            # The exchange at the beginning of these steps has brought all the earlier ones to the center.
            os.pwrite(file.fileno(), b"%12d" % (worker.clock - PERIOD), 0)


def ddp(folder: str) -> None:
    """A rank under torchrun: saves every tenth step, and goes on from there when all ranks were started again."""
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    path, rank = Path(folder), int(os.environ["RANK"])
    net, optimizer, gradient = model_and_step()
    dist.init_process_group("gloo")
    saved, step = path / "saved.pt", 0
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        net.load_state_dict(state["model"])
        step = int(state["step"])
    torch.manual_seed(rank)  # batches of its own, as `easgd.attach` gives each worker
    wrapped = DistributedDataParallel(net)
    tell(path, rank)
    stop = torch.zeros(1)
    while not stop.item():
        for _ in range(PERIOD):
            optimizer.zero_grad()
            gradient(wrapped)
            optimizer.step()
        step += PERIOD
        if rank == 0:
            torch.save({"model": net.state_dict(), "step": step}, path / ".saved.pt")
            os.replace(path / ".saved.pt", saved)
        stop.fill_(float((path / STOP).exists()))
        dist.all_reduce(stop, dist.ReduceOp.MAX)
    dist.destroy_process_group()


def torchft_localsgd(folder: str, rank: str, lighthouse: str) -> None:
    """A replica under torchft: averages every tenth step; one that was started again gets its state from another."""
    from datetime import timedelta

    import torch.distributed as dist
    from torchft import Manager, ProcessGroupGloo
    from torchft.local_sgd import LocalSGD

    path = Path(folder)
    net, optimizer, gradient = model_and_step()
    store: Any = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]

    def load(state: dict[str, Any]) -> None:
        net.load_state_dict(state["model"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)), load_state_dict=load,
        state_dict=lambda: {"model": net.state_dict()}, min_replica_size=1, use_async_quorum=False,
        timeout=timedelta(seconds=5), rank=0, world_size=1, store_addr="127.0.0.1", store_port=store.port,
        lighthouse_addr=lighthouse, replica_id=f"replica-{rank}-{os.getpid()}", hostname="127.0.0.1",
    )  # fmt: skip
    torch.manual_seed(int(rank))
    clock = 0
    with LocalSGD(manager, net, optimizer, PERIOD), open(path / f"reached-{rank}-{os.getpid()}", "wb", 0) as file:
        while not (path / STOP).exists():
            before = manager.current_step()
            for _ in range(PERIOD):
                optimizer.zero_grad()
                gradient(net)
                optimizer.step()
            if manager.current_step() > before:
                clock += PERIOD
                os.pwrite(file.fileno(), b"%12d" % clock, 0)
                tell(path, int(rank))
    manager.shutdown(wait=False)
    os._exit(0)  # its threads wait for peers that have ended


if __name__ == "__main__":
    ddp(sys.argv[1]) if len(sys.argv) == 2 else torchft_localsgd(*sys.argv[1:])
