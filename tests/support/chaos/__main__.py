"""`python -m chaos`: simulate many seeds, or one of them with a trace of what happened."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from functools import partial

import torch

from chaos.carriers import greenlet
from chaos.engines import ENGINES
from chaos.outcome import Outcome
from easgd.center.fused_rules import warm
from easgd.machine import usable_cores


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--engine", choices=[*ENGINES, "all"], default="all", help="whose code to run")
    parser.add_argument("--seed", type=int, help="replay this one and print its trace")
    parser.add_argument("--seeds", type=int, default=1000, help="how many to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=usable_cores(), help="processes to run them in")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if greenlet is None:
        print("without the package greenlet this is slow on a busy machine: pip install greenlet")
    engines = [*ENGINES] if given.engine == "all" else [given.engine]
    if given.seed is not None:
        return max(replay(engine, given.seed) for engine in engines)
    return max(many(engine, given) for engine in engines)


def many(engine: str, given: argparse.Namespace) -> int:
    """Run many seeds of one engine; say how many exchanges that were, and what was broken."""
    for method in ENGINES[engine]().methods:
        warm(method)  # compiled once, before the processes part
    start, outcomes, broken, ended = time.time(), 0, 0, 0.0
    applied, virtual = 0, 0.0
    for seed, faults, exchanges, seconds in run(engine, range(given.first, given.first + given.seeds), given.jobs):
        outcomes, applied, virtual = outcomes + 1, applied + exchanges, virtual + seconds
        if faults:
            broken += 1
            print(f"seed {seed}: " + "\n    ".join(line[:2000] for line in faults), flush=True)
        if time.time() - ended > 10.0:
            ended = time.time()
            print(f"{engine}: {outcomes} of {given.seeds} seeds, {broken} broken, {ended - start:.0f} s", flush=True)
    print(
        f"{engine}: {outcomes} seeds, {applied} exchanges in {virtual / 3600:.1f} virtual hours, "
        f"{time.time() - start:.0f} s: "
        + (f"{broken} broken; `make chaos ENGINE={engine} SEED=…` replays one" if broken else "every promise was kept")
    )
    return 1 if broken else 0


Row = tuple[int, list[str], int, float]


def run(engine: str, seeds: range, jobs: int) -> Iterator[Row]:
    """Simulate all seeds, in several processes; a row for each, in the order in which they end."""
    work = partial(one, engine)
    if jobs == 1:
        yield from map(work, seeds)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap_unordered(work, seeds, chunksize=4)


def one(engine: str, seed: int) -> Row:
    outcome = ENGINES[engine]().run(seed)
    return seed, outcome.faults, outcome.applied, outcome.seconds


def replay(engine: str, seed: int) -> int:
    """Run one seed; print what happened, by the virtual clock."""
    outcome: Outcome = ENGINES[engine]().run(seed)
    for when, who, what in outcome.trace:
        print(f"{when:10.4f}  {who:14} {what}")
    print(f"{outcome.switches} switches of thread, {outcome.applied} exchanges, signature {outcome.signature:x}")
    for fault in outcome.faults:
        print(f"broken: {fault}")
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
