"""The engine's own code under a seeded scheduler (tests/support/chaos): rows 3, 5-8, 18, 29, 30, 34 of docs/faults.md.

`make chaos SEEDS=1000` runs more; `make chaos SEED=17` replays one with a trace.
"""

from __future__ import annotations

import dataclasses
from itertools import chain

import pytest

pytest.importorskip("ray")

import chaos.carriers
import easgd
from chaos import engines
from chaos.mutants import MUTANTS
from chaos.network import Weather
from chaos.scenario import Fault, Scenario
from chaos.simulation import simulate

NOTICED = {
    "stale roll": 2,
    "forgetful ledger": 0,
    "dropped ledger": 52,
    "stale coordinator": 52,
    "told once": 193,
    "one hold": 31,
    "kept link": 49,
    "reused memory": 49,
    "short read": 40,
}
"""A seed that notices when a mend is missing."""


@pytest.mark.parametrize("block", range(4))
def test_every_promise_is_kept(block):
    for seed in range(8 * block, 8 * block + 8):
        outcome = simulate(Scenario.of(seed))
        assert not outcome.faults, f"make chaos SEED={seed}"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_promise_is_kept_with_many_seeds():
    for seed in range(1000, 2000):
        outcome = simulate(Scenario.of(seed))
        assert not outcome.faults, f"make chaos SEED={seed}"


def test_a_seed_replays_exactly():
    first, second = simulate(Scenario.of(9)), simulate(Scenario.of(9))
    assert first.signature == second.signature
    assert first.trace == second.trace
    assert first.applied > 0
    assert simulate(Scenario.of(10)).signature != first.signature


def test_greenlets_and_threads_give_the_same_schedule(monkeypatch):
    pytest.importorskip("greenlet")
    fast = simulate(Scenario.of(4))
    monkeypatch.setattr(chaos.carriers, "greenlet", None)
    slow = simulate(Scenario.of(4))
    assert (fast.signature, fast.trace) == (slow.signature, slow.trace)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mend_that_is_taken_out_is_noticed(name):
    """The named seed notices it; if the schedule has changed since, some other one does."""
    found = engines.ray().first_seed(name, chain([NOTICED[name]], range(200)))
    assert found is not None


def quiet(**changes):
    """Three workers on a good network; a test adds the one fault that it is about."""
    return dataclasses.replace(Scenario(seed=1, workers=3, shards=2, steps=4), **changes)


def test_nothing_happens_and_all_is_applied():
    outcome = simulate(quiet())
    assert not outcome.faults
    assert outcome.applied == 3 * (4 + 2) * 2, "three workers, six steps, two shards"


def test_the_coordinator_is_killed_while_the_run_begins():
    for seed in range(3):
        outcome = simulate(quiet(seed=seed, faults=(Fault(0.002, "kill coordinator", seconds=0.5),)))
        assert not outcome.faults
        assert outcome.applied > 0


def test_a_launcher_joins_before_the_run_has_begun():
    for seed in range(3):
        weather = Weather(latency=0.05)
        outcome = simulate(quiet(seed=seed, weather=weather, faults=(Fault(0.005, "join", seconds=0.1),)))
        assert not outcome.faults


def test_a_shard_is_gone_when_the_run_ends():
    """The launcher ends with what was saved last, not with a traceback."""
    faults = (Fault(2.5, "kill shard", 0, seconds=100.0), Fault(2.5, "kill shard", 1, seconds=100.0))
    outcome = simulate(quiet(steps=12, interval=1.0, restarts=0, faults=faults))
    assert not outcome.faults
    assert any("what is left is the checkpoint" in what for _, _, what in outcome.trace)


def test_a_disk_that_is_full_costs_the_checkpoint_only():
    outcome = simulate(quiet(interval=0.5, faults=(Fault(1.0, "fill disk", seconds=3.0),)))
    assert not outcome.faults
    assert any("could not be saved" in what for _, _, what in outcome.trace)


def test_a_round_goes_on_when_a_worker_is_killed():
    method = easgd.EASGD(period=1, beta=0.9, sync=True)
    outcome = simulate(quiet(method=method, faults=(Fault(1.5, "kill worker", 1),)))
    assert not outcome.faults
