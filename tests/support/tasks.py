"""What the workers of the tests do."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from torch import nn

import easgd
import problems
from easgd import checkpoint

SCHEDULES = ("round-robin", "sync", "async")


def attached(name: str, schedule: str, method: easgd.Method, *, overlap: bool = True, **options):
    os.environ.update(EASGD_CENTER=name, EASGD_SCHEDULE=schedule)
    model = problems.net()
    optimizer = method.optimizer(list(model.parameters()), 0.1, 1e-3)
    return model, optimizer, easgd.attach(model, optimizer, method, overlap=overlap, deadline=60, **options)


def trained(folder: str, name: str, schedule: str, method: easgd.Method, rank: int, **options) -> None:
    model, optimizer, worker = attached(name, schedule, method, **options)
    scheduler = problems.decaying(optimizer)
    for step in range(problems.STEPS):
        problems.loss(model, problems.batch(rank, step)).backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
    state = {"local": list(model.parameters()), "center": list(worker.center().values()), "clock": worker.clock}
    checkpoint.save(Path(folder) / f"{name}-{rank}", state)
    problems.await_all(folder, name, int(os.environ["EASGD_WORKERS"]))
    worker.close()


def conform(folder: str) -> None:
    """Every method on every schedule, each with a center of its own, in one run; then what must be refused."""
    torch.set_num_threads(1)
    rank = int(os.environ["EASGD_RANK"])
    for schedule in SCHEDULES:
        for name, method in problems.fitting(schedule).items():
            trained(folder, f"{schedule} {name}", schedule, method, rank)
    for name, method in problems.fitting("round-robin").items():
        trained(folder, f"blocking {name}", "round-robin", method, rank, overlap=False)
    for codec in ("bf16", "int8"):
        for name in ("easgd", "eamsgd", "downpour", "admm", "averaged easgd", "localsgd", "asyncdiloco"):
            trained(folder, f"{codec} {name}", "round-robin", problems.METHODS[name], rank, compression=codec)
    for name in ("easgd", "downpour"):
        own = ("int4", "int2", "topk")[rank]
        trained(folder, f"mixed {name}", "round-robin", problems.METHODS[name], rank, compression=own)
    poison(folder, rank)
    misfit(folder, rank)
    if rank == 0:
        os.environ["EASGD_WORKERS"] = "1"
        for name in ("easgd", "eamsgd", "downpour", "admm"):
            trained(folder, f"one {name}", "async", problems.METHODS[name], rank)


def poison(folder: str, rank: int) -> None:
    """Worker 1 turns to NaN: it is refused, and starts again from the center."""
    model, optimizer, worker = attached("nan", "async", easgd.EASGD(period=1), nonfinite="reset")
    for step in range(6):
        if rank == 1 and step == 3:
            with torch.no_grad():
                next(iter(model.parameters())).fill_(float("nan"))
        problems.loss(model, problems.batch(rank, step)).backward()
        optimizer.step()
        optimizer.zero_grad()
    center = worker.center()
    checkpoint.save(Path(folder) / f"nan-{rank}", {"center": list(center.values()), "local": list(model.parameters())})
    worker.close()


def misfit(folder: str, rank: int) -> None:
    """Worker 1 brings another model."""
    os.environ.update(EASGD_CENTER="misfit", EASGD_SCHEDULE="async")
    first = Path(folder) / "misfit-opened"
    model = nn.Linear(4, 2) if rank != 1 else nn.Linear(4, 3)
    if rank == 1:
        while not first.exists():
            time.sleep(0.01)
    try:
        os.environ["EASGD_WORKERS"], before = "1", os.environ["EASGD_WORKERS"]  # nobody waits for those that do not fit
        worker = easgd.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), easgd.EASGD())
        first.touch()
        worker.close()
    except easgd.SettingError as error:
        (Path(folder) / f"misfit-{rank}").write_text(str(error))
    finally:
        os.environ["EASGD_WORKERS"] = before


def until_told(
    folder: str, period: int = 1, options: dict | None = None, pause: float = 0.01, width: int = 2
) -> None:  # fmt: skip
    """Train until <folder>/go is there; leave the process id, and every tenth step the clock and who lives."""
    torch.set_num_threads(1)
    rank, incarnation = os.environ["EASGD_RANK"], os.environ["EASGD_INCARNATION"]
    torch.manual_seed(0)
    model = nn.Linear(64, width)
    # Small enough to be stable with α = 0.9 too, when one worker is left.
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=period, beta=0.9), **(options or {}))
    draw = torch.Generator().manual_seed(int(rank))
    while not Path(folder, "go").exists():
        optimizer.zero_grad()
        inputs = torch.randn(4, 64, generator=draw)  # other ones each time, as in training: workers never settle
        (model(inputs) - 1).square().mean().backward()
        optimizer.step()
        if worker.clock % 10 == 1:
            scratch = Path(folder, f".at-{rank}-{incarnation}")
            scratch.write_text(f"{os.getpid()} {worker.clock} {worker.client.living}")
            scratch.rename(Path(folder, f"at-{rank}-{incarnation}"))
        time.sleep(pause)


def ten_times_slower(folder: str, steps: int = 200) -> None:
    """The last worker takes a step whenever all others have taken ten more: who waits for it waits for ever."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Linear(64, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=1, beta=0.9), deadline=20)
    slow = worker.rank == worker.workers - 1

    def clock(rank: int) -> int:
        path = Path(folder, f"clock-{rank}")
        return int(path.read_text()) if path.exists() else 0

    while worker.clock < (steps // 10 if slow else steps):
        while slow and min(map(clock, range(worker.rank))) < 10 * (worker.clock + 1):
            time.sleep(0.001)
        optimizer.zero_grad()
        (model(torch.randn(4, 64)) - 1).square().mean().backward()
        optimizer.step()
        scratch = Path(folder, f".clock-{worker.rank}")
        scratch.write_text(str(worker.clock))
        scratch.rename(Path(folder, f"clock-{worker.rank}"))


def resumed(folder: str, earlier: str) -> None:
    """Go on from the center that an earlier run has saved."""
    from easgd.engines.ray.supervisor import saved_center

    saved = saved_center(earlier)
    torch.manual_seed(1)
    model = nn.Linear(64, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=1, beta=0.9), saved=saved)
    same = torch.equal(torch.cat([p.detach().flatten() for p in model.parameters()]), saved["slots"]["x"])
    (model(torch.ones(1, 64)) - 1).square().mean().backward()
    optimizer.step()
    Path(folder, "resumed").write_text(f"{same} {saved['version']} {worker.client.version} {len(worker.client.shards)}")
