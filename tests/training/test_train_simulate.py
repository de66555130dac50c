"""Training on the virtual clock: the same bits whatever happens to the process."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import resource
import signal

import numpy as np
import pytest
import torch

import easgd
from easgd.flat import pack
from easgd.training.checkpoints import Checkpoints
from easgd.training.folder import alone
from easgd.training.task import Task
from following import wait_for

SMALL = {"engine": "simulate", "network": "digits-mlp", "workers": 3, "steps": 60, "train_subset": 200}
FILES = ("records-simulate.jsonl", "evaluations.jsonl", "model.safetensors")


def contents(path):
    return [(path / name).read_bytes() for name in FILES]


def flags(settings):
    return [text for name, value in settings.items() for text in (f"--{name.replace('_', '-')}", str(value))]


def test_the_same_settings_give_the_same_bits(tmp_path):
    for name in "ab":
        easgd.train(SMALL, tmp_path / name)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    easgd.train({**SMALL, "seed": 1}, tmp_path / "c")
    assert contents(tmp_path / "a")[0] != contents(tmp_path / "c")[0]


@pytest.mark.parametrize("schedule", ["async", "round-robin", "sync"])
def test_gradients_on_two_threads_give_the_same_bits(tmp_path, schedule):
    settings = {**SMALL, "steps": 20, "schedule": schedule, "method": "easgd"}
    easgd.train(settings, tmp_path / "one")
    easgd.train({**settings, "parallel": 2}, tmp_path / "two")
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_workers_that_start_apart_are_as_far_from_the_center_as_random_points(tmp_path):
    settings = {**SMALL, "workers": 1, "steps": 1, "period": 1, "method": "easgd"}
    runs = {start: easgd.train({**settings, "start": start}, tmp_path / start) for start in ("center", "apart")}
    first = {start: run.evaluations[0] for start, run in runs.items()}
    assert first["center"] == first["apart"]  # the same center
    task, steps = Task(runs["apart"].config), {start: next(run.records()) for start, run in runs.items()}
    far = torch.dist(pack(task.model(steps["apart"].worker))[0], pack(task.model())[0])
    assert steps["apart"].distance == pytest.approx(float(far))
    assert steps["center"].distance == 0
    assert len({next(task.model(worker).parameters())[0, 0].item() for worker in (None, 0, 1, 2)}) == 4


def test_the_center_is_measured_on_the_grid_and_learns(tmp_path):
    run = easgd.train({**SMALL, "steps": 300, "method": "eamsgd"}, tmp_path / "run")
    curves = run.curves()
    assert curves["time"][0] == 0
    assert curves["steps"][0] == 0
    assert curves["bytes"][0] == 0
    assert len(curves["time"]) == 41
    assert set(np.diff(curves["steps"])) == {22, 23}
    assert curves["steps"][-1] == 900
    assert (np.diff(curves["time"]) > 0).all()
    assert curves["test_error"][0] > 0.8
    assert curves["test_error"][-1] < 0.1
    # 4 bytes of 4810 parameters, both ways; 3 workers at their clocks 0, 10, …, 290, the fastest at 300 too
    assert curves["bytes"][-1] == 91 * 2 * 4 * 4810
    assert run.status["state"] == "finished"
    # the final center loads into the user's own model, and is what the last evaluation measured
    task = Task(run.config)
    task.model().load_state_dict(run.center)
    assert task.measure(run.center)["test_error"] == curves["test_error"][-1]


def test_budgets_end_a_run(tmp_path):
    by_time = easgd.train({**SMALL, "steps": None, "seconds": 1.0}, tmp_path / "time")
    assert 1.0 <= by_time.curves()["time"][-1] < 1.2
    by_epochs = easgd.train({**SMALL, "steps": None, "epochs": 1}, tmp_path / "epochs")
    assert by_epochs.curves()["steps"][-1] == 45  # ⌈1433 / 32⌉, all workers together
    by_error = easgd.train({**SMALL, "steps": 2000, "target": 0.5, "evaluate_every": 0.2}, tmp_path / "error")
    assert by_error.curves()["test_error"][-1] <= 0.5 < by_error.curves()["test_error"][:-1].min()


@pytest.mark.heavy
def test_a_killed_run_goes_on_with_the_same_bits(tmp_path, easgd, monkeypatch):
    import easgd as library

    library.train(SMALL, tmp_path / "whole")
    process = easgd("train", *flags({**SMALL, "checkpoint_every": 0.02}), "--out", "killed", "--plain")
    folder = tmp_path / "killed"
    wait_for(lambda: (folder / "checkpoints" / "000002").exists(), process)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert library.Run(folder).status["state"] == "running"
    assert library.Run(folder).curves()["time"][0] == 0  # a report can read it
    library.resume(folder)
    assert contents(folder) == contents(tmp_path / "whole")


@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_saves_and_the_run_goes_on(tmp_path, easgd, number):
    import easgd as library

    settings = {**SMALL, "steps": 400}
    process = easgd("train", *flags(settings), "--out", "run", "--plain")
    wait_for(lambda: (tmp_path / "run" / "evaluations.jsonl").exists(), process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in out
    assert "--resume run" in err
    assert "Traceback" not in err
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "interrupted"
    library.resume(tmp_path / "run")
    library.train(settings, tmp_path / "whole")
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_a_run_that_goes_on_stays_the_same_run(tmp_path):
    easgd.train({**SMALL, "steps": 4}, tmp_path / "a")
    before = (tmp_path / "a" / "config.json").read_bytes()
    kept = easgd.Run(tmp_path / "a").config.lr
    with pytest.raises(easgd.SettingError, match=r"lr = 9.0: a run that goes on keeps .*; leave it away; steps, "):
        easgd.resume(tmp_path / "a", lr=9.0)
    assert (tmp_path / "a" / "config.json").read_bytes() == before
    easgd.resume(tmp_path / "a", lr=kept, steps=6)
    assert easgd.Run(tmp_path / "a").config.steps == 6


def test_a_longer_budget_goes_on_where_the_run_ended(tmp_path):
    easgd.train({**SMALL, "steps": 30, "evaluate_every": 0.5}, tmp_path / "a")
    easgd.resume(tmp_path / "a", steps=60)
    easgd.train({**SMALL, "steps": 60, "evaluate_every": 0.5}, tmp_path / "b")
    assert (tmp_path / "a" / FILES[0]).read_bytes() == (tmp_path / "b" / FILES[0]).read_bytes()
    assert (tmp_path / "a" / FILES[2]).read_bytes() == (tmp_path / "b" / FILES[2]).read_bytes()


class Killed(BaseException):
    """Ends a write where it stands, as SIGKILL would."""


@pytest.mark.parametrize("stage", range(8))
def test_killed_at_each_stage_of_writing_a_checkpoint(tmp_path, monkeypatch, stage):
    """Every file operation of a save is a place to die at; the previous or the new one loads, always."""
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save({"a": {"x": torch.full((4,), 1.0)}, "b": {"n": 1}})
    count = 0

    def dying(real):
        def call(*args, **kwargs):
            nonlocal count
            count += 1
            if count - 1 == stage:
                raise Killed
            return real(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        for name in ("mkdir", "replace", "fsync"):
            patch.setattr(os, name, dying(getattr(os, name)))
        with contextlib.suppress(Killed):
            checkpoints.save({"a": {"x": torch.full((4,), 2.0)}, "b": {"n": 2}})
    state = Checkpoints(tmp_path).load()
    assert state is not None
    assert (float(state["a"]["x"][0]), state["b"]["n"]) in {(1.0, 1), (2.0, 2)}
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []  # nothing of the dead writer stays


def test_a_full_disk_costs_the_checkpoint_not_the_training(tmp_path, easgd):
    """A real write error: the kernel refuses files beyond 24 kB, so records and checkpoints fail in the middle."""

    def limit():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (24_000, 24_000))

    process = easgd(
        "train", *flags({**SMALL, "steps": 120, "checkpoint_every": 0.05}), "--out", "run", "--plain", preexec_fn=limit
    )
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    assert "finished" in out
    assert "no checkpoint" in err
    assert "no longer written" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("damage", ["truncated", "flipped", "pickle"])
def test_a_damaged_checkpoint_is_named_and_the_previous_one_used(tmp_path, capsys, damage):
    easgd.train({**SMALL, "checkpoint_every": 0.01}, tmp_path / "run")
    easgd.train(SMALL, tmp_path / "whole")
    newest = Checkpoints(tmp_path / "run" / "checkpoints").whole()
    assert len(newest) == 2
    victim = newest[0] / "simulation.safetensors"
    data = bytearray(victim.read_bytes())
    if damage == "truncated":
        data = data[: len(data) // 2]
    elif damage == "flipped":
        data[-100] ^= 1
    else:
        trap = tmp_path / "executed"
        data = pickle.dumps(Trap(str(trap)))
    victim.write_bytes(data)
    easgd.resume(tmp_path / "run")
    assert str(victim) in capsys.readouterr().err
    assert not (tmp_path / "executed").exists()
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


class Trap:
    """Leaves a trace if it is ever unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (self.path,))


BAD = {
    "unknown flag": (["--metod", "easgd"], "--metod"),
    "unknown method": (["--method", "eagsd"], "did you mean 'easgd'"),
    "period 0": (["--period", "0"], "period = 0"),
    "p = 0": (["--workers", "0"], "workers = 0"),
    "α outside (0, 1)": (["--moving-rate", "1.5"], "moving_rate = 1.5"),
    "β too large": (["--beta", "5"], "below 4"),
    "not a number": (["--lr", "fast"], "lr = 'fast'"),
    "infinite": (["--lr", "inf"], "lr = inf"),
    "missing data": (["--data", "cifar100"], "data set = cifar100: not found; here are "),
    "wrong network": (["--network", "cifar"], "network = cifar"),
    "momentum without": (["--method", "easgd", "--momentum", "0.9"], "momentum = 0.9"),
    "two springs": (["--beta", "0.5", "--rho", "1"], "exactly one"),
    "unknown preset": (["--engine", "simulate", "--cost", "paper-cifra"], "did you mean 'paper-cifar'"),
    "unknown preset elsewhere": (["--cost", "bogus"], "unknown cost"),
    "negative weight decay": (["--weight-decay", "-1"], "weight_decay = -1.0"),
    "negative gain": (["--gain", "-1"], "gain = -1.0"),
    "negative gamma": (["--decay", "sqrt", "--gamma", "-1"], "gamma = -1.0"),
    "a seed without end": (["--seed", "99999999999999999999999"], "below 2⁶³"),
    "an initial seed without end": (["--init-seed", "99999999999999999999999"], "below 2⁶³"),
    "more than a machine": (["--workers", "100000"], "at most 1024"),
    "more than its memory": (["--engine", "simulate", "--workers", "9000000"], "or a smaller network"),
    "nothing to compress": (["--compression", "int8"], "nothing is sent"),
    "apart in real time": (["--start", "apart"], "workers join at the center"),
    "apart without a spring": (["--engine", "simulate", "--method", "downpour", "--start", "apart"], "has no spring"),
    "no such run": (["--resume", "nowhere"], "nowhere"),
    "a file as folder": (["--out", "/dev/null"], "/dev/null"),
    "no such config": (["--config", "nothing.toml"], "nothing.toml"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line(case, capsys, tmp_path, monkeypatch):
    from easgd.cli import main

    monkeypatch.chdir(tmp_path)
    arguments, expected = BAD[case]
    assert main(["train", *arguments]) == 2
    err = capsys.readouterr().err
    assert expected in err
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert not (tmp_path / "runs").exists()  # nothing was begun


def test_two_programs_do_not_train_in_one_folder(tmp_path):
    run = easgd.train({**SMALL, "steps": 5}, tmp_path / "run")
    before = contents(run.path)
    with alone(run.path), pytest.raises(easgd.SettingError, match="another easgd is at work in it"):
        easgd.resume(run.path, steps=10)
    assert contents(run.path) == before
    assert easgd.resume(run.path, steps=10).status["state"] == "finished"


def test_a_config_file_is_taken_back_and_its_typos_are_refused(tmp_path, capsys):
    from easgd.cli import main

    first = easgd.train({**SMALL, "steps": 5}, tmp_path / "a")
    assert main(["train", "--config", str(first.path / "config.json"), "--out", str(tmp_path / "b"), "--plain"]) == 0
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    (tmp_path / "bad.toml").write_text('method = "easgd"\nperoid = 3\n')
    assert main(["train", "--config", str(tmp_path / "bad.toml")]) == 2
    assert "did you mean 'period'" in capsys.readouterr().err


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path):
    easgd.train({**SMALL, "steps": 5}, tmp_path / "a")
    before = contents(tmp_path / "a")
    with pytest.raises(easgd.SettingError, match="--resume"):
        easgd.train(SMALL, tmp_path / "a")
    assert contents(tmp_path / "a") == before


def test_json_lines_are_for_programs(tmp_path, capsys):
    from easgd.cli import main

    assert main(["train", *flags({**SMALL, "steps": 5}), "--out", str(tmp_path / "a"), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0]["event"] == "evaluation"
    assert lines[0]["progress"] == 0
    assert lines[-1] == {"event": "end", "state": "finished", "reason": "15 steps are done"}


def test_tensorboard_events_are_written(tmp_path):
    pytest.importorskip("tensorboard")
    from easgd.cli import main

    assert main(["train", *flags({**SMALL, "steps": 5}), "--out", str(tmp_path / "a"), "--tensorboard", "--plain"]) == 0
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "a" / "tensorboard"))
    events.Reload()
    errors = [event.value for event in events.Scalars("center/test_error")]
    assert errors == pytest.approx(list(easgd.Run(tmp_path / "a").curves()["test_error"]))
