"""How long a checkpoint waits for its workers: longer after each time that it was given up."""

from __future__ import annotations

from types import SimpleNamespace

from easgd.training.checkpoints import SUFFIX, Checkpoints
from easgd.training.process_runner import BARRIER_SECONDS, ProcessRunner


def test_a_barrier_that_was_given_up_waits_twice_as_long_the_next_time(tmp_path):
    """Else a state that takes longer to write than the first barrier waits would never be saved."""
    notes, saved = [], []
    runner = object.__new__(ProcessRunner)
    runner._draft, runner._barrier, runner._next_checkpoint = None, BARRIER_SECONDS, 0.0
    runner.checkpoints = Checkpoints(tmp_path)
    runner.monitor = SimpleNamespace(time=0.0, steps=0, workers=[0])
    runner.config = SimpleNamespace(checkpoint_every=1.0)
    runner.view = SimpleNamespace(note=notes.append)
    runner._complete = lambda number, center: saved.append(number)
    center = SimpleNamespace(joined=lambda: [0], snapshot=dict, version=0, clocks=[])
    now = 0.0
    for patience in (2.0, 4.0, 8.0):
        now = max(now, runner._next_checkpoint)
        runner._checkpoint(center, now)
        runner._checkpoint(center, now + patience)
        assert runner._draft is not None
        runner._checkpoint(center, now + patience + 0.1)
        assert runner._draft is None
        now += patience + 0.1
    assert len(notes) == 3
    runner._checkpoint(center, runner._next_checkpoint)
    (runner._draft / f"worker-0{SUFFIX}").touch()
    runner._checkpoint(center, runner._next_checkpoint + 15.0)
    assert len(saved) == 1
    assert runner._barrier == BARRIER_SECONDS
