"""Training on a cluster: stopped, and gone on with."""

from __future__ import annotations

import pytest
import torch
from test_train_local import SMALL, clocks, same

import easgd as library
from easgd.training.checkpoints import Checkpoints

pytest.importorskip("ray")

from easgd.engines.ray import supervisor


@pytest.mark.timeout(600)
def test_resume_has_the_same_center_clocks_cursors_and_optimizer_states(cluster, shared, tmp_path):
    """Case 26: a resumed run that may not take a step saves again what it was given; then it takes some more."""
    run = library.train(
        {**SMALL, "engine": "ray", "steps": 30, "evaluate": "after", "checkpoint_every": 1e6}, tmp_path / "run"
    )
    checkpoints = Checkpoints(run.path / "checkpoints")
    first = checkpoints.load()
    assert first["center"]["version"] > 0
    library.resume(run.path)
    second = checkpoints.load()
    assert checkpoints.whole()[0].name == "000002"
    for part in ("center", "worker-0", "worker-1"):
        assert same(first[part], second[part]), part
    further = library.resume(run.path, steps=40)
    assert clocks(further) == {0: list(range(40)), 1: list(range(40))}, "no step is told twice, none is missing"
    assert all(torch.isfinite(value).all() for value in further.center.values())


@pytest.mark.timeout(600)
def test_a_run_that_ends_before_the_supervisor_has_looked_keeps_its_last_checkpoint(
    cluster, shared, tmp_path, monkeypatch
):
    """A resumed run may have nothing left to do: its workers come and go between two looks."""
    monkeypatch.setattr(supervisor, "POLL_SECONDS", 3600.0)
    run = library.train(
        {**SMALL, "engine": "ray", "steps": 10, "evaluate": "after", "checkpoint_every": 1e6}, tmp_path / "run"
    )
    checkpoints = Checkpoints(run.path / "checkpoints")
    assert [path.name for path in checkpoints.whole()] == ["000001"]
    assert checkpoints.load()["center"]["version"] > 0
