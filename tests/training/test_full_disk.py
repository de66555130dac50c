"""A disk that fills up during a run costs what could not be written, not the training."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

import easgd as library
from easgd.training.checkpoints import LineFile
from easgd.training.folder import RunFolder
from following import wait_for

SMALL = {"network": "digits-mlp", "workers": 2, "train_subset": 100, "method": "easgd"}


def flags(settings):
    return [text for name, value in settings.items() for text in (f"--{name.replace('_', '-')}", str(value))]


@pytest.fixture
def disk(tmp_path):
    """Mount a disk of one megabyte, which `fill` fills up."""
    path = tmp_path / "disk"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("this machine does not let us mount a small disk")
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(disk):
    with open(disk / "ballast", "ab", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


@pytest.mark.heavy
def test_a_simulated_run_goes_on_and_fails_for_its_model_alone(disk, easgd):
    process = easgd("train", *flags({**SMALL, "engine": "simulate", "steps": 600}), "--out", disk / "run", "--plain")
    wait_for(lambda: (disk / "run" / "evaluations.jsonl").exists(), process)
    fill(disk)
    out, err = process.communicate(timeout=90)
    assert process.returncode == 1, err
    assert "failed: the final model could not be written" in out
    assert "100%" in out  # all steps were done
    assert "Traceback" not in err
    model = [line for line in err.splitlines() if "the final model could not be written" in line]
    assert len(model) == 1
    assert f"easgd train --resume {disk / 'run'}" in model[0]
    assert err.count("records-simulate.jsonl is no longer written") <= 1
    assert not list((disk / "run").glob(".*.tmp"))


def test_a_failed_model_is_made_up_for_by_resuming(disk):
    run = library.train({**SMALL, "engine": "simulate", "steps": 20}, disk / "run")
    expected = run.center["layers.1.weight"]
    RunFolder(run.path).model.unlink()
    fill(disk)
    assert library.resume(run.path).status["state"] == "failed"
    (disk / "ballast").unlink()
    again = library.resume(run.path)
    assert again.status["state"] == "finished"
    assert again.center["layers.1.weight"].equal(expected)


@pytest.mark.heavy
@pytest.mark.parametrize("evaluate", ["after", "live"])
def test_processes_train_on_a_full_disk(disk, easgd, evaluate):
    settings = {**SMALL, "steps": 1000, "checkpoint_every": 0.5, "evaluate": evaluate}
    process = easgd("train", *flags(settings), "--out", disk / "run", "--plain")
    records = disk / "run" / "records-1-0.jsonl"
    wait_for(lambda: records.exists() and b'"step"' in records.read_bytes(), process)
    fill(disk)
    out, err = process.communicate(timeout=120)
    # What the run itself deletes at its end may make room for its model.
    written = RunFolder(disk / "run").model.exists()
    assert process.returncode == (0 if written else 1), err
    assert ("failed: the final model could not be written" in out) != written
    assert "no space left on device" in err.lower()
    assert "Traceback" not in err
    assert err.count("snapshots of the center are not written") <= 1


def test_lines_that_did_not_fit_are_written_when_there_is_room(disk, capsys):
    file = LineFile(disk / "lines")
    fill(disk)
    for n in range(3):
        file.write(json.dumps({"n": n}))
        assert not file.flush()
    (disk / "ballast").unlink()
    assert file.flush()
    file.close()
    assert [json.loads(line)["n"] for line in (disk / "lines").read_text().splitlines()] == [0, 1, 2]
    assert capsys.readouterr().err.count("no longer written") == 1
