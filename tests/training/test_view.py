"""What the views print, and that output which fails does not end a training."""

from __future__ import annotations

import errno
import subprocess
import sys

import pytest

import easgd
from easgd.training.monitor import Monitor
from easgd.training.process_runner import ProcessRunner
from easgd.training.view import Plain, Silent, shielded

ROW = {"time": 1.5, "steps": 30, "train_loss": 1.0, "test_loss": 2.0, "test_error": 0.25}


def test_measuring_after_training_is_counted(capsys):
    Plain().evaluated(ROW, 1.0, (3, 23))
    Plain().evaluated(ROW, 0.5)
    counted, live = capsys.readouterr().out.splitlines()
    assert counted.startswith("measured  3 of 23  ")
    assert live.startswith(" 50%  ")


def test_snapshots_left_at_the_end_are_counted(tmp_path, capsys):
    settings = {"network": "digits-mlp", "workers": 1, "method": "easgd", "steps": 30, "train_subset": 50}
    easgd.train({**settings, "evaluate": "after"}, tmp_path / "run", view=Plain())
    lines = [line for line in capsys.readouterr().out.splitlines() if "test error" in line]
    total = len(easgd.Run(tmp_path / "run").evaluations)
    assert 1 < len(lines) <= 10
    every = -(-total // 10)
    shown = [n for n in range(1, total + 1) if n % every == 0 or n == total]
    assert [line.split()[:4] for line in lines] == [["measured", str(n), "of", str(total)] for n in shown]


def test_many_snapshots_left_at_the_end_are_ten_lines_and_the_last(capsys):
    view = Plain()
    for n in range(1, 24):
        view.evaluated(ROW, 1.0, (n, 23))
    lines = capsys.readouterr().out.splitlines()
    assert [int(line.split()[1]) for line in lines] == [3, 6, 9, 12, 15, 18, 21, 23]


def test_starting_the_workers_is_said_once(capsys, monkeypatch):
    view, now = Plain(), [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    view._last = 0.0
    for moment in (11.0, 22.0, 33.0):
        now[0] = moment
        view.progress(0.0, Monitor(), 0.0)
    assert capsys.readouterr().out == "starting the workers\n"


def test_a_view_that_fails_shows_nothing_more(capsys):
    class Failing(Silent):
        notes = 0

        def note(self, text):
            Failing.notes += 1
            raise OSError(errno.ENOSPC, "No space left on device")

    view = shielded(Failing())
    view.note("a")
    view.note("b")
    assert Failing.notes == 1
    assert capsys.readouterr().err == (
        "easgd: warning: progress is no longer shown (no space left on device); going on\n"
    )


@pytest.mark.skipif(sys.platform != "linux", reason="needs /dev/full")
def test_a_full_disk_behind_stdout_does_not_end_a_training(tmp_path):
    settings = ["--engine", "simulate", "--network", "digits-mlp", "--steps", "5", "--json", "--out", "run"]
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "easgd", "train", *settings]
        done = subprocess.run(command, cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True, timeout=90)
    assert done.stderr == "easgd: warning: progress is no longer shown (no space left on device); going on\n"
    assert done.returncode == 0
    assert easgd.Run(tmp_path / "run").status["state"] == "finished"


@pytest.mark.parametrize(("bound", "live"), [({0, 1}, False), ({0, 1, 2}, True)])
def test_the_center_is_measured_live_only_on_a_core_that_this_process_may_use(tmp_path, monkeypatch, bound, live):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: bound, raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 64)
    config = easgd.Config(workers=2, network="digits-mlp").resolved()
    from easgd.training.folder import RunFolder

    assert ProcessRunner(config, RunFolder(tmp_path), Silent()).live is live
