"""Runs that go the same way are computed together, and leave what they would have left alone."""

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

import easgd
from easgd.training import shared_gradients
from easgd.training.compare import families
from easgd.training.config import Config
from easgd.training.folder import RunFolder
from easgd.training.gradient import TaskGradient

SMALL = {"engine": "simulate", "workers": 2, "period": 3, "network": "digits-mlp", "train_subset": 50, "steps": 40}
THREE = ("downpour", "adownpour", "mvadownpour")
FILES = ("config.json", "evaluations.jsonl", "records-simulate.jsonl", "model.safetensors")


def contents(folder):
    return {name: (folder / name).read_bytes() for name in FILES}


def settings_in(folder, **more):
    """One file of settings per method, as a comparison writes them."""
    folder.mkdir()
    pairs = []
    for method in THREE:
        (folder / f"{method}.json").write_text(json.dumps(Config(method=method, **SMALL, **more).resolved().as_dict()))
        pairs.append((folder / method, folder / f"{method}.json"))
    return pairs


@pytest.fixture
def alone(tmp_path):
    """What each run leaves when it is carried out by itself."""
    for method in THREE:
        easgd.train({**SMALL, "method": method}, tmp_path / "alone" / method)
    return {method: contents(tmp_path / "alone" / method) for method in THREE}


def test_who_goes_together():
    one, two, three = (Config(method=method, **SMALL).resolved() for method in THREE)
    other, seed = Config(method="easgd", **SMALL).resolved(), replace(two, seed=1)
    assert families([one, other, two, seed, three]) == [[one, two, three], [other], [seed]]
    assert families([replace(one, target=0.1), replace(two, target=0.1)]) == [
        [replace(one, target=0.1)], [replace(two, target=0.1)],
    ]  # fmt: skip
    assert families([replace(one, engine="local"), replace(two, engine="local")])[0] == [replace(one, engine="local")]
    sequential = [Config(method=method, engine="simulate").resolved() for method in ("sgd", "msgd", "asgd", "mvasgd")]
    assert [[config.method for config in group] for group in families(sequential)] == [
        ["sgd", "asgd", "mvasgd"],
        ["msgd"],
    ]


def test_a_group_computes_one_path_and_leaves_the_same_bytes(tmp_path, alone, monkeypatch):
    calls = []
    compute = TaskGradient.__call__
    monkeypatch.setattr(TaskGradient, "__call__", lambda self, x, w, s: calls.append((w, s)) or compute(self, x, w, s))
    pairs = settings_in(tmp_path / "together")
    assert shared_gradients.carry_out(pairs) == 0
    assert len(calls) == len(set(calls)) == 80  # forty steps of two workers, once
    for method, (folder, _) in zip(THREE, pairs, strict=True):
        assert contents(folder) == alone[method], method
        assert RunFolder(folder).status["state"] == "finished"
    # They are not three times the same: what is measured differs.
    assert len({bytes_["evaluations.jsonl"] for bytes_ in alone.values()}) == 3


def test_paths_that_differ_are_noticed(tmp_path):
    pairs = settings_in(tmp_path / "together")
    other = json.loads(pairs[1][1].read_text())
    pairs[1][1].write_text(json.dumps({**other, "lr": 2 * other["lr"]}))
    with pytest.raises(AssertionError, match="the paths differ"):
        shared_gradients.carry_out(pairs)
    assert [RunFolder(folder).status["state"] for folder, _ in pairs] == ["failed"] * 3


def test_after_a_kill_each_goes_on_from_where_it_was_saved(tmp_path, alone):
    """One run was saved after ten steps, the others after twenty: those two go on together."""
    pairs = settings_in(tmp_path / "together")
    for (folder, settings), steps in zip(pairs, (20, 10, 20), strict=True):
        easgd.train({**SMALL, "method": folder.name, "steps": steps, "evaluate_every": 1000.0}, folder)
        (folder / "config.json").write_bytes((tmp_path / "alone" / folder.name / "config.json").read_bytes())
        assert settings.exists()
    assert shared_gradients.carry_out(pairs) == 0
    for method, (folder, _) in zip(THREE, pairs, strict=True):
        for name in ("records-simulate.jsonl", "model.safetensors"):
            assert (folder / name).read_bytes() == alone[method][name], (method, name)


@pytest.mark.heavy
@pytest.mark.timeout(200)
def test_ctrl_c_saves_the_whole_group_and_the_same_command_goes_on(tmp_path):
    out = tmp_path / "out"
    command = [
        sys.executable, "-m", "easgd", "compare", "--methods", ",".join(THREE), "--engine", "simulate",
        "--workers", "2", "--seconds", "12", "--evaluate-every", "0.5", "--network", "digits-mlp",
        "--train-subset", "50", "--out", str(out), "--no-report", "--jobs", "2",
    ]  # fmt: skip
    folders = [out / f"{method}-p2-t1-lr0.1-s0" for method in THREE]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while not (folders[2] / "evaluations.jsonl").exists() or (folders[2] / "evaluations.jsonl").stat().st_size < 500:
        assert time.monotonic() < end, "nothing was measured"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, complained = process.communicate(timeout=60)
    assert process.returncode == 130, complained
    assert [RunFolder(folder).status["state"] for folder in folders] == ["interrupted"] * 3
    assert "3 of 3 runs are not finished" in complained
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert [RunFolder(folder).status["state"] for folder in folders] == ["finished"] * 3
    records = {(folder / "records-simulate.jsonl").read_bytes() for folder in folders}
    assert len(records) == 1  # one path
    assert len({(folder / "evaluations.jsonl").read_bytes() for folder in folders}) == 3
