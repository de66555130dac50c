"""Functions that worker processes import. Where one needs torch, it imports it itself."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

VARIABLES = ("EASGD_RANK", "EASGD_WORKERS", "EASGD_INCARNATION", "EASGD_SCHEDULE")


def tell(folder: str, greeting: str) -> None:
    place = {name: os.environ.get(name) for name in VARIABLES}
    Path(folder, f"told-{place['EASGD_RANK']}").write_text(json.dumps([greeting, place]))


def fail_once(ways: dict[int, str]) -> None:
    """Fail in the first incarnation, in this rank's way."""
    way = ways.get(int(os.environ["EASGD_RANK"]), "")
    if os.environ["EASGD_INCARNATION"] != "0" or not way:
        return
    if way == "raise":
        raise ValueError("boom")
    if way == "exit":
        sys.exit(5)
    os.kill(os.getpid(), signal.SIGKILL)


def record(seconds: float) -> None:
    rank, incarnation = int(os.environ["EASGD_RANK"]), os.environ["EASGD_INCARNATION"]
    step = {"event": "step", "worker": rank, "clock": 0, "time": 0.0, "compute": seconds, "data": 0.0}
    line = json.dumps({**step, "communication": 0.5, "waiting": 0.25})
    Path(os.environ["EASGD_OUT"], f"records-{rank}-{incarnation}.jsonl").write_text(line + "\n")


def length(data: bytes, folder: str) -> None:
    Path(folder, f"length-{os.environ['EASGD_RANK']}").write_text(str(len(data)))


def wait_forever(folder: str) -> None:
    Path(folder, f"up-{os.environ['EASGD_RANK']}").write_text(str(os.getpid()))
    while True:
        time.sleep(0.01)


def train_with_own_period(sync: bool) -> None:
    """Train with a period that sets itself. The times that it measures are given: no luck decides who takes which."""
    import torch

    import easgd

    torch.set_num_threads(1)
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    worker = easgd.attach(model, optimizer, easgd.EASGD(period="auto", sync=sync), overlap=False)
    controller = worker.state.controller
    assert controller is not None
    for name, seconds in (("stepped", 1.0 + worker.rank), ("exchanged", 0.5)):
        measure = getattr(controller, name)
        setattr(controller, name, lambda *_, measure=measure, seconds=seconds: measure(seconds))
    for _ in range(80):
        optimizer.zero_grad()
        model(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()
