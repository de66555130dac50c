"""`easgd bench exchange`: the elastic exchange beside the memory limit, for 1, 2 and 4 processes on one center.

The limit is a loop with the same access pattern and nothing to compute: it reads two vectors and writes both, each
process its own vector and the shared one, without a lock. Both are timed in turn in the same processes.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import torch

from easgd.bench import Row
from easgd.center.segment import Layout
from easgd.center.shared import SharedCenter
from easgd.kernels import fused
from easgd.methods import EASGD

SIZES = (1_000_000, 25_000_000, 100_000_000)
PROCESSES = (1, 2, 4)
METHOD = EASGD(period=1, moving_rate=0.1)


def rows(sizes: tuple[int, ...] = SIZES, processes: tuple[int, ...] = PROCESSES) -> list[Row]:
    """Measure each size alone against plain torch, then each number of processes against the limit."""
    from rich.progress import track

    torch.set_num_threads(1)
    cases = [(n, p) for n in sizes for p in processes]
    out = [_against_torch(n) for n in track(sizes, "torch expression", transient=True)]
    return [*(_together(n, p) for n, p in track(cases, "processes", transient=True)), *out]


def _against_torch(n: int) -> Row:
    """The fused loop against d = α(x − x̃); x̃ = x̃ + d as one would write it."""
    x, center = torch.rand(n), torch.rand(n)
    mine, shared, fresh = x.clone().numpy(), center.clone().numpy(), x.clone().numpy()
    times: dict[str, list[float]] = {"fused": [], "naive": []}
    for _ in range(max(5, 20_000_000 // n)):
        mine[:] = fresh
        start = time.perf_counter()
        fused.elastic_(mine, shared, fused.f32(0.5))
        middle = time.perf_counter()
        d = 0.5 * (x - center)
        center = center + d
        times["fused"].append(middle - start)
        times["naive"].append(time.perf_counter() - middle)
    ours, naive = (statistics.median(samples) for samples in times.values())
    return Row(f"{n:,} elements, 1 process, torch expression", 1 / ours, "exchanges/s", 1 / naive, naive / ours)


def _together(n: int, processes: int) -> Row:
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        context = multiprocessing.get_context("spawn")
        barrier, queue = context.Barrier(processes), context.Queue()
        started = [
            context.Process(target=_worker, args=(folder, rank, processes, n, barrier, queue))
            for rank in range(processes)
        ]
        for process in started:
            process.start()
        results = [queue.get(timeout=300) for _ in started]
        for process in started:
            process.join()
    exchange = sum(r["exchange"] for r in results)
    limit = sum(r["limit"] for r in results)
    return Row(f"{n:,} elements, {processes} processes, memory limit", exchange, "exchanges/s", limit, exchange / limit)


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


def _worker(folder: str, rank: int, processes: int, n: int, barrier: Barrier, queue: Any) -> None:
    torch.set_num_threads(1)
    layout = Layout(("x",), ((n,),), ((1,),), ("torch.float32",))
    center = SharedCenter(Path(folder), METHOD, torch.zeros(n), layout, rank, processes)
    center.join(0)
    message = torch.rand(n)
    mine, shared = message.numpy(), center.segment.slots["x"].numpy()
    fresh = torch.rand(n)
    calls: dict[str, Callable[[], object]] = {
        "limit": lambda: fused.swap_(mine, shared),
        "exchange": lambda: center.apply_move([(message, 1.0)], 0.5),
    }
    rates: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(7):
        for name, call in calls.items():
            call()
            barrier.wait()
            count, spent = 0, 0.0
            while spent < 0.2 or count < 2:
                if count % 4 == 0:  # a message that is answered again and again would shrink into denormals
                    message.copy_(fresh)
                start = time.perf_counter()
                call()
                spent += time.perf_counter() - start
                count += 1
            rates[name].append(count / spent)
            barrier.wait()
    queue.put({name: statistics.median(samples) for name, samples in rates.items()})
