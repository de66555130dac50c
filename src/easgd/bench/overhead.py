"""`easgd bench overhead`: images per second of two workers relative to two processes that never communicate.

The same run measures the alternatives: DistributedDataParallel on gloo, and averaging the parameters every ten steps.
The cases take turns in the same two processes, with one thread each.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from easgd.bench import Row, in_processes, memory_folder
from easgd.errors import unknown
from easgd.kernels.allocator import keep_freed_memory
from easgd.methods import EAMSGD, EASGD, Method
from easgd.models import cifar
from easgd.worker.attach import attach

WORKERS, BATCH, ROUNDS, STEPS = 2, 128, 9, 10


def mlp() -> nn.Module:
    """Return the 2352-2048-2048-10 network of 9 M parameters."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(2352, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)
    )


NETS: dict[str, Callable[[], nn.Module]] = {"CIFAR net": cifar, "9 M MLP": mlp}
METHODS: dict[str, Method] = {
    "EASGD τ=10": EASGD(period=10),
    "EASGD τ=1": EASGD(period=1),
    "EAMSGD τ=10": EAMSGD(period=10, momentum=0.9),
}

PLAIN = ("DistributedDataParallel", "averaging every 10 steps")


def rows(engine: str = "local") -> list[Row]:
    """Measure every case: "local" with both networks and the center in shared memory, "ray" with the CIFAR net."""
    if engine == "ray":
        return _rows_on_ray()
    if engine != "local":
        raise unknown("engine", engine, ("local", "ray"))
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        results = in_processes(_worker, WORKERS, folder)
    return [_row(net, case, [r[net, case] for r in results]) for net, case in results[0]]


def _rows_on_ray(cases: Sequence[str] = (*METHODS, PLAIN[0]), rounds: int = 5) -> list[Row]:
    from easgd.engines.run import run

    with tempfile.TemporaryDirectory() as folder:
        result = run(_ray_worker, WORKERS, "ray", (folder, tuple(cases), rounds))
        if any(result.exit_codes):
            raise RuntimeError(f"the workers ended with {result.exit_codes}")
        results = [json.loads((Path(folder) / f"rates-{rank}").read_text()) for rank in range(WORKERS)]
    return [_row("CIFAR net on Ray", case, [r[case] for r in results]) for case in results[0]]


def _ray_worker(folder: str, cases: Sequence[str], rounds: int) -> None:
    """Run the cases in a Ray actor, whose environment has its rank and its center already."""
    torch.set_num_threads(1)
    rank = int(os.environ["EASGD_RANK"])
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=WORKERS)
    results = _cases(Bed(cifar, None, rank), dist.barrier, cases, rounds)
    (Path(folder) / f"rates-{rank}").write_text(json.dumps(results))
    dist.destroy_process_group()


def _row(net: str, case: str, samples: list[list[tuple[float, float]]]) -> Row:
    """Add the rates of both processes; the ratio is the median over rounds of the case relative to isolated."""
    rounds = [tuple(map(sum, zip(*pair, strict=True))) for pair in zip(*samples, strict=True)]
    ratio = statistics.median(case_rate / isolated for case_rate, isolated in rounds)
    rate = statistics.median(case_rate for case_rate, _ in rounds)
    return Row(f"{net}, {case}", rate, "images/s", rate / ratio, ratio)


def _worker(folder: str, rank: int, barrier: Barrier, queue: Any) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()  # as under the launcher; for the isolated case as well
    dist.init_process_group("gloo", init_method=f"file://{folder}/gloo", rank=rank, world_size=WORKERS)
    results = {}
    for net, make in NETS.items():
        bed = Bed(make, Path(folder) / net.replace(" ", "-"), rank)
        results.update(
            {(net, case): rates for case, rates in _cases(bed, barrier.wait, (*METHODS, *PLAIN), ROUNDS).items()}
        )
    queue.put(results)
    dist.destroy_process_group()


def _cases(
    bed: Bed, meet: Callable[[], object], cases: Sequence[str], rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Return the rates of each case and of its isolated reference, round by round."""
    results: dict[str, list[tuple[float, float]]] = {}
    for round_ in range(rounds + 1):
        for case in cases:
            momentum = METHODS[case].delta if case in METHODS else 0.0
            # Each case runs next to its reference, before or after it in turn: the machine's load affects both.
            order = [case, "isolated"] if round_ % 2 else ["isolated", case]
            rates = {}
            for name in order:
                with bed.case(name, momentum) as step:
                    rates[name] = _rate(step, meet)
            if round_:  # the first round warms up
                results.setdefault(case, []).append((rates[case], rates["isolated"]))
    return results


def _rate(step: Callable[[], None], meet: Callable[[], object]) -> float:
    step()
    meet()
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    return STEPS * BATCH / (time.perf_counter() - start)


class Bed:
    """One model and one batch for all cases: different memory addresses alone would change their speed."""

    def __init__(self, make: Callable[[], nn.Module], folder: Path | None, rank: int) -> None:
        self.model, self.folder, self.rank = make(), folder, rank
        self.images = torch.rand(BATCH, 3, 28, 28).to(memory_format=torch.channels_last)
        self.labels = torch.randint(0, 10, (BATCH,))

    @contextmanager
    def case(self, name: str, momentum: float) -> Iterator[Callable[[], None]]:
        """Set up one case and yield its training step."""
        optimizer = torch.optim.SGD(
            self.model.parameters(), lr=0.001, momentum=momentum, nesterov=momentum > 0, foreach=False
        )
        if name in METHODS:
            self._place(name)
            worker = attach(self.model, optimizer, METHODS[name])
            yield self._step(self.model, optimizer)
            worker.close()
        elif name == PLAIN[0]:
            yield self._step(nn.parallel.DistributedDataParallel(self.model), optimizer)
        elif name == "isolated":
            yield self._step(self.model, optimizer)
        else:
            yield self._averaging(self._step(self.model, optimizer))
        dist.barrier()

    def _place(self, name: str) -> None:
        """Set the environment from which `attach` finds the center: one center per case."""
        place: dict[str, object] = {"EASGD_CENTER": name}
        if self.folder is not None:
            run = self.folder / name.replace(" ", "-")
            run.mkdir(parents=True, exist_ok=True)
            place = {"EASGD_RUN": run, "EASGD_RANK": self.rank, "EASGD_WORKERS": WORKERS, "EASGD_OUT": run / "out"}
        os.environ.update({key: str(value) for key, value in place.items()})

    def _step(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
        def step() -> None:
            nn.functional.cross_entropy(model(self.images), self.labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad()

        return step

    def _averaging(self, step: Callable[[], None]) -> Callable[[], None]:
        clock = 0

        def run() -> None:
            nonlocal clock
            step()
            clock += 1
            if clock % 10 == 0:
                with torch.no_grad():
                    for p in self.model.parameters():
                        dist.all_reduce(p)
                        p.div_(WORKERS)

        return run
