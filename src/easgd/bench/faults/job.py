"""A worker that is disturbed: `easgd launch -m easgd.bench.faults.job FOLDER`; what it says is in FOLDER."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

PERIOD = 10
PACE = 0.004  # seconds that a step sleeps: three workers leave two processors some time
STOP, SLOW = "stop", "slow"


def train(folder: Path) -> None:
    """Train until told to stop; leave process id and clock after every step. Who is told to is ten times slower."""
    import torch

    import easgd

    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = torch.nn.Linear(64, 10)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    worker = easgd.attach(net, optimizer, easgd.EASGD(period=PERIOD))
    with open(folder / f"at-{worker.rank}-{worker.context.incarnation}", "wb", buffering=0) as said:
        while not (folder / STOP).exists():
            slow = 10 if (folder / f"{SLOW}-{worker.rank}").exists() else 1
            began = time.perf_counter()
            optimizer.zero_grad()
            inputs, labels = torch.randn(16, 64), torch.randint(10, (16,))
            torch.nn.functional.cross_entropy(net(inputs), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            os.pwrite(said.fileno(), b"%9d %9d" % (os.getpid(), worker.clock), 0)
            time.sleep(slow * PACE + (slow - 1) * (time.perf_counter() - began))


if __name__ == "__main__":
    train(Path(sys.argv[1]))
