"""`easgd bench exchange`: the elastic exchange relative to the memory limit, for 1, 2 and 4 processes on one center.

The limit is a loop with the same memory accesses and no arithmetic: it reads two vectors and writes both, each process
its own vector and the shared one, without locks. Both are timed in turn in the same processes, and the ratio is the
median over adjacent timings. The exchange includes all that a worker does: locks, the check that x is finite, and the
distance to the center.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import torch

from easgd.bench import Row, in_processes, memory_folder, side_by_side
from easgd.center.client import JoinRequest
from easgd.center.layout import Layout
from easgd.engines.local.client import SharedMemoryClient
from easgd.kernels import fused
from easgd.methods import EASGD

SIZES = (1_000_000, 25_000_000, 100_000_000)
PROCESSES = (1, 2, 4)
METHOD = EASGD(period=1, moving_rate=0.1)
LIMIT, EXCHANGE = "memory limit", "exchange"
ROUNDS, SECONDS = 7, 0.1


def rows(sizes: tuple[int, ...] = SIZES, processes: tuple[int, ...] = PROCESSES) -> list[Row]:
    """Measure each number of processes against the memory limit, and one process against torch expressions."""
    from rich.progress import track

    torch.set_num_threads(1)
    cases = [(n, p) for n in sizes for p in processes]
    out = [_against_torch(n) for n in track(sizes, "torch expression", transient=True)]
    return [*(together(n, p) for n, p in track(cases, "processes", transient=True)), *out]


def _against_torch(n: int) -> Row:
    """Compare the fused loop with the expressions d = α(x − x̃); x = x − d; x̃ = x̃ + d in torch."""
    x, center = torch.rand(n), torch.rand(n)
    mine, shared = x.clone(), center.clone()

    def ours() -> None:
        fused.move_(mine.numpy(), shared.numpy(), fused.f32(0.5), fused.f32(1.0))

    def naive() -> None:
        nonlocal x, center
        d = 0.5 * (x - center)
        x = x - d
        center = center + d

    # α = 1/2: x and center are equal after one exchange. Other rates lead to denormal differences, which are slow.
    move, torch_, ratio = side_by_side(ours, naive, max(7, 20_000_000 // n))
    return Row(f"{n:,} elements, 1 process, torch expression", 1 / move, "exchanges/s", 1 / torch_, 1 / ratio)


def together(n: int, processes: int) -> Row:
    """Measure this many processes on one center of n elements."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        results = in_processes(_worker, processes, folder, processes, n, timeout=600)
    # The sum over processes, round by round.
    rates = {name: [sum(each) for each in zip(*(r[name] for r in results), strict=True)] for name in results[0]}
    ratio = statistics.median(a / b for a, b in zip(rates[EXCHANGE], rates[LIMIT], strict=True))
    rate = statistics.median(rates[EXCHANGE])
    return Row(f"{n:,} elements, {processes} processes", rate, "exchanges/s", rate / ratio, ratio)


def processor_time(n: int) -> tuple[float, float]:
    """Return the processor seconds of one exchange and of the memory limit, of one process on a center of its own."""
    with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
        x, seconds = torch.rand(n), dict[str, float]()
        for name, call in _calls(Path(folder), x, 0, 1).items():
            call()
            count, start, end = 0, time.process_time(), time.process_time() + SECONDS
            while count < 2 or time.process_time() < end:
                call()  # α = 1/2: x and center are equal after the first, and no difference is denormal
                count += 1
            seconds[name] = (time.process_time() - start) / count
    return seconds[EXCHANGE], seconds[LIMIT]


def _calls(folder: Path, x: torch.Tensor, rank: int, processes: int) -> dict[str, Callable[[], object]]:
    """Join the center in `folder`; return an exchange of x with it, and the same memory accesses without arithmetic."""
    n = x.numel()
    layout = Layout(("x",), ((n,),), ((1,),), ("torch.float32",))
    center = SharedMemoryClient(folder, JoinRequest(METHOD, torch.zeros(n), layout, rank, launched=processes))
    center.join(0)
    move = center.move
    assert move is not None
    mine, shared = x.numpy(), center.segment.slots["x"].numpy()
    return {EXCHANGE: lambda: move([(x, 1.0)], 0.5, 0), LIMIT: lambda: fused.swap_(mine, shared)}


def _worker(folder: str, processes: int, n: int, rank: int, barrier: Barrier, queue: Any) -> None:
    torch.set_num_threads(1)
    x, fresh = torch.rand(n), torch.rand(n)
    calls = _calls(Path(folder), x, rank, processes)
    rates: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()
            barrier.wait()
            count, spent = 0, 0.0
            while spent < SECONDS or count < 2:
                if count % 4 == 0:  # repeated exchanges would lead to denormal differences
                    x.copy_(fresh)
                start = time.perf_counter()
                call()
                spent += time.perf_counter() - start
                count += 1
            rates[name].append(count / spent)
            barrier.wait()
    queue.put(rates)
