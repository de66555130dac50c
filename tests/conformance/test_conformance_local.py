"""The conformance suite on real processes: forced into the simulator's order, they give the simulator's numbers.

One run of three processes trains with every method in turn; the tests look at what it left.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import easgd
import problems
from easgd import checkpoint
from easgd.records import Step


def run(tmp_path_factory, schedule, overlap):
    folder = tmp_path_factory.mktemp(f"{schedule}-{overlap}")
    result = easgd.run(
        problems.conform, workers=problems.WORKERS, args=(str(folder), overlap), schedule=schedule, out=folder / "out"
    )
    assert result.exit_codes == [0] * problems.WORKERS
    return folder, result


@pytest.fixture(scope="module")
def round_robin(tmp_path_factory):
    return run(tmp_path_factory, "round-robin", True)[0]


@pytest.fixture(scope="module")
def blocking(tmp_path_factory):
    return run(tmp_path_factory, "round-robin", False)[0]


@pytest.fixture(scope="module")
def in_place(tmp_path_factory):
    return run(tmp_path_factory, "round-robin", "auto")[0]


@pytest.fixture(scope="module")
def synchronous(tmp_path_factory):
    return run(tmp_path_factory, "sync", True)


@pytest.fixture(scope="module")
def asynchronous(tmp_path_factory):
    return run(tmp_path_factory, "async", "auto")


def left(folder: Path, name: str, rank: int):
    state = checkpoint.load(folder / f"{name}-{rank}")
    return tuple(torch.cat([t.flatten() for t in state[key]]) for key in ("local", "center"))


def agree(folder, name, schedule):
    sim = problems.simulated(name, schedule)
    for rank, worker in enumerate(sim.workers):
        torch.testing.assert_close(left(folder, name, rank)[0], worker.state.replica.read(), rtol=0, atol=5e-6)
    # The last rank takes the last turn: what it reads then is the final center.
    center = left(folder, name, problems.WORKERS - 1)[1]
    torch.testing.assert_close(center, sim.center.measured, rtol=0, atol=5e-6)


@pytest.mark.parametrize("name", problems.fitting("round-robin"))
def test_a_forced_round_robin_equals_the_simulator(name, round_robin):
    agree(round_robin, name, "round-robin")


@pytest.mark.parametrize("name", problems.fitting("round-robin"))
def test_moving_in_place_equals_the_simulator_too(name, in_place):
    agree(in_place, name, "round-robin")


@pytest.mark.parametrize("name", problems.fitting("sync"))
def test_synchronous_rounds_equal_the_simulator(name, synchronous):
    agree(synchronous[0], name, "sync")


def test_a_synchronous_round_is_waited_for(synchronous):
    """Three processes on two cores: somebody is always last, and the others' time counts as waiting."""
    steps = [r for r in synchronous[1].records if isinstance(r, Step) and r.bytes]
    assert sum(r.waiting for r in steps) > 0


@pytest.mark.parametrize("name", problems.fitting("round-robin"))
def test_hiding_the_exchange_changes_no_bit(name, round_robin, blocking):
    """In a forced order, with three workers: overlapped and blocking runs are equal bit for bit."""
    last = problems.WORKERS - 1
    for rank in range(problems.WORKERS):
        assert torch.equal(left(round_robin, name, rank)[0], left(blocking, name, rank)[0])
    assert torch.equal(left(round_robin, name, last)[1], left(blocking, name, last)[1])


@pytest.mark.parametrize("name", problems.fitting("async"))
def test_asynchronous_runs_are_finite_and_move(name, asynchronous):
    start = torch.cat([p.detach().flatten() for p in problems.net().parameters()])
    for rank in range(problems.WORKERS):
        local, center = left(asynchronous[0], name, rank)
        assert local.isfinite().all()
        assert center.isfinite().all()
        assert not torch.equal(local, start)


def test_every_step_is_recorded(asynchronous):
    steps = [r for r in asynchronous[1].records if isinstance(r, Step)]
    # all methods append to one file per worker
    assert len(steps) == problems.STEPS * problems.WORKERS * len(problems.fitting("async"))
    assert all(min(r.compute, r.data, r.communication, r.waiting) >= 0 for r in steps)
    exchanged = [r for r in steps if r.bytes]
    assert exchanged
    assert all(r.staleness is not None and r.staleness >= 0 for r in exchanged)
