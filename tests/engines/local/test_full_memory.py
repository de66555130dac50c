"""Shared memory that is full, or has something in it that is not ours: one line, or nothing at all."""

from __future__ import annotations

import os
import subprocess

import pytest

from easgd.launch import run_directory as rundir
from launching import until


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """Shared memory of eight megabytes."""
    path = tmp_path / "shm"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("this machine does not let us mount a small disk")
    monkeypatch.setenv("EASGD_SHARED", str(path))
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(memory):
    with open(memory / "ballast", "ab", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


NORMALIZED = """
import torch, easgd
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
worker = easgd.attach(model, optimizer, easgd.EASGD(period=1))
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
up()
until("go")
"""


def test_memory_that_fills_up_before_the_end_is_one_line(launch, memory):
    """Case 18: what the exchange does not carry (num_batches_tracked) has no room; that is said, and the code is 1."""
    one = launch(NORMALIZED, workers=1)
    one.pid(0)
    fill(memory)
    one.touch("go")
    code, _, err = one.wait()
    assert code == 1, err
    assert "Traceback" not in err
    said = [line for line in err.splitlines() if "the model's buffers could not be left with the center" in line]
    assert len(said) == 1
    assert "o space left" in said[0]


def test_no_room_for_a_run_is_one_line(launch, memory):
    """Case 23."""
    fill(memory)
    code, out, err = launch("pass", workers=1).wait()
    assert (code, out) == (2, "")
    (line,) = err.splitlines()
    assert line.startswith("easgd: error: no run directory in ")
    assert line.endswith("make room, or set EASGD_SHARED to another folder")


def test_what_is_no_run_disturbs_nobody(launch, shared):
    """Case 27: a stray file and a dangling link in the common folder stay; a folder of no living launcher goes."""
    base = rundir.base()
    base.mkdir(mode=0o700)
    (base / "stray").touch()
    (base / "link").symlink_to("/nowhere")
    (base / "dead").mkdir()
    assert rundir.live_runs() == {}
    assert [path.name for path in rundir.stale_runs()] == ["dead"]
    one = launch('up(); until("go")', workers=1)
    one.pid(0)
    until(lambda: len(rundir.live_runs()) == 1, "the run is listed")
    one.touch("go")
    assert one.wait()[0] == 0
    assert sorted(path.name for path in base.iterdir()) == ["link", "stray"]
