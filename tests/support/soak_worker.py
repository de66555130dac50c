"""The worker of the soaks: softmax regression on digits, small enough to be killed hundreds of times.

python soak_worker.py FOLDER: digits are in FOLDER, and so is all that a worker says; `begin` and `go` are its orders.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path


def tell(folder: Path, name: str, text: str) -> None:
    """Write a file that nobody sees half written."""
    scratch = folder / f".{name}.{os.getpid()}"
    scratch.write_text(text)
    scratch.rename(folder / name)


def train(folder: Path, pause: float = 0.005) -> None:
    """Train from `begin` until `go`; after the first step, and every twentieth, leave process id and clock."""
    me = f"{os.environ['EASGD_RANK']}-{os.environ['EASGD_INCARNATION']}"
    while not (folder / "begin").exists():
        time.sleep(0.01)
    import numpy as np
    import torch

    import easgd

    torch.set_num_threads(1)
    torch.manual_seed(0)
    with np.load(folder / "digits.npz") as digits:
        images, labels = torch.from_numpy(digits["images"]), torch.from_numpy(digits["labels"])
    model = torch.nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=5, beta=0.9))
    while not (folder / "go").exists():
        rows = torch.randint(0, len(labels), (32,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.step()
        if worker.clock % 20 == 1:
            tell(folder, f"at-{me}", f"{os.getpid()} {worker.clock}")
        time.sleep(pause)


if __name__ == "__main__":
    train(Path(sys.argv[1]))
