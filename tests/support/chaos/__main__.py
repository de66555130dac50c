"""`python -m chaos`: simulate many seeds, or one of them with a trace of what happened."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator

import torch

from chaos.carriers import greenlet
from chaos.scenario import METHODS, Scenario
from chaos.simulation import Outcome, simulate
from easgd.center.fused_rules import warm
from easgd.machine import usable_cores


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one and print its trace")
    parser.add_argument("--seeds", type=int, default=1000, help="how many to run")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--jobs", type=int, default=usable_cores(), help="processes to run them in")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.seed is not None:
        return replay(given.seed)
    if greenlet is None:
        print("without the package greenlet this is slow on a busy machine: pip install greenlet")
    for method in METHODS:
        warm(method)  # compiled once, before the processes part
    start, outcomes, broken, ended = time.time(), 0, 0, 0.0
    applied, virtual = 0, 0.0
    for seed, faults, exchanges, seconds in run(range(given.first, given.first + given.seeds), given.jobs):
        outcomes, applied, virtual = outcomes + 1, applied + exchanges, virtual + seconds
        if faults:
            broken += 1
            print(f"seed {seed}: " + "\n    ".join(line[:2000] for line in faults), flush=True)
        if time.time() - ended > 10.0:
            ended = time.time()
            print(f"{outcomes} of {given.seeds} seeds, {broken} broken, {ended - start:.0f} s", flush=True)
    print(
        f"{outcomes} seeds, {applied} exchanges in {virtual / 3600:.1f} virtual hours, {time.time() - start:.0f} s: "
        + (f"{broken} broken; replay one with `make chaos SEED=…`" if broken else "every promise was kept")
    )
    return 1 if broken else 0


Row = tuple[int, list[str], int, float]


def run(seeds: range, jobs: int) -> Iterator[Row]:
    """Simulate all seeds, in several processes; a row for each, in the order in which they end."""
    if jobs == 1:
        yield from map(one, seeds)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap_unordered(one, seeds, chunksize=4)


def one(seed: int) -> Row:
    outcome = simulate(Scenario.of(seed))
    return seed, outcome.faults, outcome.applied, outcome.seconds


def replay(seed: int) -> int:
    """Run one seed; print what happened, by the virtual clock."""
    outcome: Outcome = simulate(Scenario.of(seed))
    for when, who, what in outcome.trace:
        print(f"{when:10.4f}  {who:14} {what}")
    print(f"{outcome.switches} switches of thread, {outcome.applied} exchanges, signature {outcome.signature:x}")
    for fault in outcome.faults:
        print(f"broken: {fault}")
    return 1 if outcome.faults else 0


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
