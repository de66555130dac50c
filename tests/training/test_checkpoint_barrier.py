"""How long a checkpoint waits for its workers: longer after each time that it was given up."""

from __future__ import annotations

from types import SimpleNamespace

from easgd.training.checkpoints import SUFFIX, Checkpoints
from easgd.training.process_runner import BARRIER_SECONDS, LONGEST_BARRIER, ProcessRunner


def runner_at(folder, notes, saved, **monitor):
    """A runner of one worker, of which only the checkpoints matter."""
    runner = object.__new__(ProcessRunner)
    runner._draft, runner._barrier, runner._next_checkpoint = None, BARRIER_SECONDS, 0.0
    runner.checkpoints = Checkpoints(folder)
    runner.monitor = SimpleNamespace(workers=[0], **monitor)
    runner.config = SimpleNamespace(checkpoint_every=1.0)
    runner.view = SimpleNamespace(note=notes.append)
    runner._complete = lambda number, center: saved.append(number)
    return runner


CENTER = SimpleNamespace(joined=lambda: [0], snapshot=dict, version=0, clocks=[])


def test_one_that_was_given_up_is_repeated_within_about_a_minute(tmp_path):
    """Early in a run the mean step counts the start: 50 s here, and five barriers of it would be 17 minutes."""
    runner = runner_at(tmp_path, [], [], time=100.0, steps=2)
    runner._checkpoint(CENTER, 0.0)
    runner._checkpoint(CENTER, 203.0)
    assert runner._draft is None
    assert runner._next_checkpoint == 203.0 + LONGEST_BARRIER


def test_a_barrier_that_was_given_up_waits_twice_as_long_the_next_time(tmp_path):
    """Else a state that takes longer to write than the first barrier waits would never be saved."""
    notes, saved = [], []
    runner = runner_at(tmp_path, notes, saved, time=0.0, steps=0)
    now = 0.0
    for patience in (2.0, 4.0, 8.0):
        now = max(now, runner._next_checkpoint)
        runner._checkpoint(CENTER, now)
        runner._checkpoint(CENTER, now + patience)
        assert runner._draft is not None
        runner._checkpoint(CENTER, now + patience + 0.1)
        assert runner._draft is None
        now += patience + 0.1
    assert len(notes) == 3
    runner._checkpoint(CENTER, runner._next_checkpoint)
    (runner._draft / f"worker-0{SUFFIX}").touch()
    runner._checkpoint(CENTER, runner._next_checkpoint + 15.0)
    assert len(saved) == 1
    assert runner._barrier == BARRIER_SECONDS
