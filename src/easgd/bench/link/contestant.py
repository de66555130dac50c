"""One worker of the race, as a process of its own: `python -m easgd.bench.link.contestant FOLDER/spec.json`.

All contestants run this loop. A case differs in what wraps the model, in the optimizer, and in which weights are
measured (`sides`). The worker of machine 0 keeps the weights with the second of the training at which it had them, and
measures them when the training is over: measuring costs nobody time. Getting the weights does, and is counted.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from easgd.bench.link.cases import case
from easgd.bench.link.jobs import JOBS, Job
from easgd.bench.link.network import ADDRESSES
from easgd.bench.link.sides import Side, side_of
from easgd.files import atomic
from easgd.kernels.allocator import keep_freed_memory


class Spec(msgspec.Struct, frozen=True):
    """What one run is to do; both workers read it."""

    job: str
    case: str
    mbit: float | None
    steps: int
    """The budget of each worker."""
    every: int
    """Steps between two measurements, and between two looks at the clock."""
    limit: float
    """Seconds after which it ends, target or not."""
    measured: bool = True
    shards: int | None = None
    """Of the center, where there is one."""
    seed: int = 0


def main(path: str) -> None:
    """Run one worker and write `result-MACHINE.json` beside the file."""
    torch.set_num_threads(1)
    keep_freed_memory()
    file, here = Path(path), machine()
    spec = msgspec.json.decode(file.read_bytes(), type=Spec)
    job = JOBS[spec.job]
    with side_of(case(spec.case), job) as side:
        result = train(spec, job, side, here == 0, file.with_name("done"))
    with atomic(file.with_name(f"result-{here}.json")) as scratch:
        scratch.write_text(json.dumps(result))
    if side.synchronous:
        # Hooks in Python are called on gloo's threads: at its end the interpreter waits for them for ever, or aborts.
        sys.stdout.flush()
        os._exit(0)


def machine() -> int:
    """Return which machine of the laboratory this is: the one whose address it sends from."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((ADDRESSES[1], 1))
        return ADDRESSES.index(probe.getsockname()[0])


def train(spec: Spec, job: Job, side: Side, keeper: bool, done: Path) -> dict[str, Any]:
    """Train until the budget is used up, the limit is reached, or the keeper of the weights is done."""
    batches = iter(job.batches(side.rank, spec.seed))
    kept: list[tuple[float, int, dict[str, Tensor]]] = []
    times: list[float] = []
    side.meet()
    start = last = time.perf_counter()
    for step in range(1, spec.steps + 1):
        _step(job, side, next(batches))
        if step % spec.every == 0 or step == spec.steps:
            if keeper and spec.measured:
                kept.append((time.perf_counter() - start, step, side.weights()))
            over = side.agree(time.perf_counter() - start > spec.limit)
        else:
            over = False
        now = time.perf_counter()
        times.append(round(now - last, 5))
        last = now
        if over or (not side.synchronous and not keeper and done.exists()):
            break
    if keeper:
        done.touch()  # what the other one does from now on is not seen by anybody
    points = [[round(seconds, 3), step, job.measure(weights)] for seconds, step, weights in kept]
    result: dict[str, Any] = {"taken": len(times), "seconds": round(last - start, 3), "points": points, "times": times}
    if side.exchanging:
        result["exchanging"] = [round(seconds, 5) for seconds in side.exchanging[: len(times)]]
    return result


def _step(job: Job, side: Side, batch: tuple[Tensor, Tensor]) -> None:
    loss = job.loss(side.model, batch)
    side.optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    side.optimizer.step()


if __name__ == "__main__":
    main(sys.argv[1])
