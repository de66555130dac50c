"""The beginning of committed runs, trained again: the same settings give what stands beside the figures.

Virtual times and counts are equal to the digit. Losses are equal to rounding, which differs between processors.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import easgd
from easgd.data import path_of
from easgd.training.run import Run

COMMITTED = Path(__file__).parents[3] / "docs/reproduction/laptop"
BRIEF = {
    "bytes": "bytes-p2-int4", "descendants": "diloco-p4-t10-lr0.001-s0", "eta": "eamsgd-p16-1e-3", "fig2": "eamsgd-t1",
    "footnotes": "eamsgd-p4-5e-3-apart", "headline": "msgd-1e-3", "sequential": "asgd-5e-2",
    "fig3": "easgd-p4-5e-2", "pairs": "msgd-5e-4", "seeds": "msgd-1e-3", "tau": "eamsgd-t16",
}  # fmt: skip
"""Of each recipe the run whose first measurement took few gradients.

Of `sequential` it is the mean over SGD's points, not its last one: SGD leaves its plateau just then, which makes one
per cent of the rounding of another processor (seen with equal bits from the code of that run and from today's).
"""
MEASURED_IN_REAL_SECONDS = {"breakdown"}


def test_every_committed_recipe_is_repeated():
    assert {path.parent.name for path in COMMITTED.glob("*/runs")} == {*BRIEF} | MEASURED_IN_REAL_SECONDS


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("recipe", BRIEF)
def test_a_committed_run_begins_the_same_way_again(recipe, tmp_path):
    if not path_of("cifar10").exists():
        pytest.skip("needs `easgd data make cifar10`")
    committed = Run(COMMITTED / recipe / "runs" / BRIEF[recipe])
    _, first = committed.evaluations[:2]
    again = easgd.train(replace(committed.config, seconds=first["time"], target=None), tmp_path / "again")
    last = again.evaluations[-1]
    assert last["time"] == pytest.approx(first["time"], rel=1e-9)
    counts = ("steps", "version", "bytes")
    assert [last[name] for name in counts] == [first[name] for name in counts]
    assert last["train_loss"] == pytest.approx(first["train_loss"], rel=2e-3)
    assert last["test_error"] == pytest.approx(first["test_error"], abs=0.03)
