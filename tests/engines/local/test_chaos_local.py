"""The local engine's own code under a seeded scheduler (tests/support/chaos/local): rows 1, 2, 4-6, 13, 33 of
docs/faults.md.

`make chaos ENGINE=local SEEDS=1000` runs more; `make chaos ENGINE=local SEED=17` replays one with a trace.
"""

from __future__ import annotations

import dataclasses
from itertools import chain

import pytest

import chaos.carriers
import easgd
from chaos import engines
from chaos.local.mutants import MUTANTS
from chaos.local.scenario import LocalScenario
from chaos.local.simulation import simulate
from chaos.scenario import Fault

NOTICED = {"open gate": 2, "open stripes": 48, "unmarked round": 33, "kept sum": 13, "waited for": 0}
"""A seed that notices each breakage."""


@pytest.mark.parametrize("block", range(4))
def test_every_promise_is_kept(block):
    for seed in range(8 * block, 8 * block + 8):
        outcome = simulate(LocalScenario.of(seed))
        assert not outcome.faults, f"make chaos ENGINE=local SEED={seed}"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_promise_is_kept_with_many_seeds():
    for seed in range(1000, 2000):
        outcome = simulate(LocalScenario.of(seed))
        assert not outcome.faults, f"make chaos ENGINE=local SEED={seed}"


def test_a_seed_replays_exactly():
    first, second = simulate(LocalScenario.of(2)), simulate(LocalScenario.of(2))
    assert (first.signature, first.trace) == (second.signature, second.trace)
    assert first.applied > 0
    assert simulate(LocalScenario.of(4)).signature != first.signature


def test_greenlets_and_threads_give_the_same_schedule(monkeypatch):
    pytest.importorskip("greenlet")
    fast = simulate(LocalScenario.of(4))
    monkeypatch.setattr(chaos.carriers, "greenlet", None)
    slow = simulate(LocalScenario.of(4))
    assert (fast.signature, fast.trace) == (slow.signature, slow.trace)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_breakage_is_noticed(name):
    """The named seed notices it; if the schedule has changed since, some other one does."""
    found = engines.local().first_seed(name, chain([NOTICED[name]], range(200)))
    assert found is not None


def quiet(**changes):
    """Three workers of which nobody is killed; a test adds the one fault that it is about."""
    return dataclasses.replace(LocalScenario(seed=1, workers=3, steps=4), **changes)


@pytest.mark.parametrize("way", ["hidden", "in place", "blocking"])
def test_nothing_happens_and_all_is_applied(way):
    outcome = simulate(quiet(way=way))
    assert not outcome.faults
    assert outcome.applied == 3 * (4 + 2), "three workers, six steps"


def test_workers_take_turns_when_one_is_killed():
    outcome = simulate(quiet(turns=True, faults=(Fault(0.4, "kill worker", 1),)))
    assert not outcome.faults


@pytest.mark.parametrize("method", [easgd.EASGD(period=1, beta=0.9, sync=True), easgd.LocalSGD(period=1)])
def test_a_round_goes_on_wherever_a_worker_is_killed(method):
    for seed in range(6):
        outcome = simulate(quiet(seed=seed, method=method, faults=(Fault(0.4, "kill worker", seed),)))
        assert not outcome.faults, f"seed {seed}"
