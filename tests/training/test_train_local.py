"""Training on real processes: killed, stopped, interrupted and resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

import easgd as library
from easgd import checkpoint
from easgd.records import Step
from easgd.training.checkpoints import Checkpoints
from easgd.training.evaluator import waiting
from easgd.training.folder import RunFolder
from following import children, wait_for
from histories import follows

SMALL = {
    "network": "digits-mlp", "workers": 2, "steps": 80, "train_subset": 200, "method": "eamsgd", "evaluate": "after",
}  # fmt: skip


@pytest.fixture
def calm(tmp_path):
    """A plan under which gradients take twenty times as long: workers that train until something has happened leave the
    processors to those that make it happen.
    """
    path = tmp_path / "calm.toml"
    path.write_text("".join(f"[[fault]]\nworker = {n}\ntime = 0.0\nwhat = 'slow'\namount = 20.0\n" for n in range(2)))
    return {"faults": str(path)}


def flags(settings):
    return [text for name, value in settings.items() for text in (f"--{name.replace('_', '-')}", str(value))]


def clocks(run):
    found = {}
    for record in run.records():
        if isinstance(record, Step):
            found.setdefault(record.worker, []).append(record.clock)
    return found


def test_a_run_trains_measures_and_leaves_a_whole_folder(tmp_path):
    run = library.train({**SMALL, "steps": 150}, tmp_path / "run")
    assert run.status["state"] == "finished"
    assert clocks(run) == {0: list(range(150)), 1: list(range(150))}
    curves = run.curves()
    assert curves["steps"][0] == 0
    assert curves["steps"][-1] == 300
    assert curves["test_error"][-1] < 0.2 < curves["test_error"][0]
    assert not waiting(RunFolder(run.path))
    steps = [record for record in run.records() if isinstance(record, Step)]
    assert all(step.loss is not None for step in steps)
    assert min(step.time for step in steps) < 30.0  # since training began
    state = Checkpoints(run.path / "checkpoints").load()
    assert {"center", "progress", "worker-0", "worker-1"} == set(state)
    assert torch.equal(run.center["layers.1.weight"].flatten(), state["center"]["slots"]["x"][: 64 * 64])


def test_the_evaluator_beside_the_workers_stops_the_run_at_its_target(tmp_path, calm):
    settings = {**SMALL, **calm, "steps": 100_000, "target": 0.3, "evaluate_every": 0.2, "evaluate": "auto"}
    run = library.train(settings, tmp_path / "run")
    assert run.status["state"] == "finished"
    assert run.best_error <= 0.3
    assert run.curves()["steps"][-1] < 100_000


def test_resume_has_the_same_center_clocks_cursors_and_optimizer_states(tmp_path):
    """A resumed run that may not take a step saves again what it was given."""
    run = library.train(SMALL, tmp_path / "run")
    first = Checkpoints(run.path / "checkpoints").load()
    library.resume(run.path)
    second = Checkpoints(run.path / "checkpoints").load()
    assert Checkpoints(run.path / "checkpoints").whole()[0].name == "000002"
    # The two share the loaders' cursors and saved them one after the other: what holds is the further one.
    cursors = torch.maximum(*(first[f"worker-{rank}"]["loader"]["cursors"] for rank in (0, 1)))
    for rank in (0, 1):
        first[f"worker-{rank}"]["loader"]["cursors"] = cursors
    for part in ("center", "worker-0", "worker-1"):
        assert same(first[part], second[part]), part


def same(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


@pytest.mark.heavy
def test_the_whole_run_is_killed_and_goes_on_from_its_saved_clocks(tmp_path, easgd, calm):
    settings = {**SMALL, **calm, "steps": 100_000, "checkpoint_every": 0.3}
    process = easgd("train", *flags(settings), "--out", "run", "--plain")
    folder = RunFolder(tmp_path / "run")
    wait_for(lambda: len(Checkpoints(folder.checkpoints).whole()) == 2, process)
    workers = children(process.pid)
    assert len(workers) == 2
    process.kill()
    process.wait()
    wait_for(lambda: not any(alive(pid) for pid in workers))
    saved = Checkpoints(folder.checkpoints).load()
    reached = {rank: saved[f"worker-{rank}"]["worker"]["clock"] for rank in (0, 1)}
    most = max(reached.values()) + 100
    run = library.resume(folder.path, steps=most)
    assert clocks(run) == {rank: list(range(most)) for rank in (0, 1)}  # no step is told twice, none is missing
    times = [record.time for record in run.records() if isinstance(record, Step) and record.worker == 0]
    assert times == sorted(times)
    assert run.status["state"] == "finished"
    assert run.curves()["test_error"][-1] < 0.2


def has_steps(path):
    return path.exists() and b'"step"' in path.read_bytes()


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.heavy
def test_one_of_the_workers_is_killed_and_the_others_finish(tmp_path, easgd, calm):
    settings = {**SMALL, **calm, "workers": 3, "steps": 1_000_000, "seconds": 6, "checkpoint_every": 0.3}
    process = easgd("train", *flags(settings), "--out", "run", "--plain", "--history")
    folder = RunFolder(tmp_path / "run")
    wait_for(lambda: has_steps(folder.path / "records-1-0.jsonl"), process)
    os.kill(children(process.pid)[1], signal.SIGKILL)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert "1 of 3 workers died" in out
    events = [r.event for r in library.Run(folder.path).records() if not isinstance(r, Step)]
    assert events.count("death") == 1
    follows(folder.path)


def ends_with_a_checkpoint(process, folder, number):
    """Send a signal: the run is saved and measured, and nothing of it is left."""
    workers = children(process.pid)
    process.send_signal(number)
    _out, err = process.communicate(timeout=200)
    assert "Traceback" not in err
    assert process.returncode == 130, err
    assert json.loads((folder.path / "status.json").read_text())["state"] == "interrupted"
    state = Checkpoints(folder.checkpoints).load()
    assert {"center", "progress", "worker-0", "worker-1"} == set(state)
    assert not any(alive(pid) for pid in workers)
    assert library.Run(folder.path).center
    assert library.Run(folder.path).curves()["test_error"].size  # what was seen so far is measured


@pytest.mark.heavy
def test_a_signal_is_a_checkpoint_and_a_clean_end(tmp_path, easgd, calm):
    """The terminal is closed (SIGHUP); the test below ends with Ctrl-C."""
    process = easgd("train", *flags({**SMALL, **calm, "steps": 100_000}), "--out", "run", "--plain")
    folder = RunFolder(tmp_path / "run")
    wait_for(lambda: has_steps(folder.path / "records-1-0.jsonl"), process)
    ends_with_a_checkpoint(process, folder, signal.SIGHUP)


def stop_outside_the_center(victim, records):
    """SIGSTOP inside a stripe holds up everybody, which is another case (33): let it go on, and stop it again."""
    for _ in range(10):
        os.kill(victim, signal.SIGSTOP)
        sizes, end = [path.stat().st_size for path in records], time.monotonic() + 15
        while time.monotonic() < end:
            if any(path.stat().st_size > size + 5000 for path, size in zip(records, sizes, strict=True)):
                return
            time.sleep(0.01)
        os.kill(victim, signal.SIGCONT)
        time.sleep(0.05)
    pytest.fail("whenever it is stopped, the other worker stands still")


@pytest.mark.heavy
@pytest.mark.timeout(900)  # a barrier that was given up is repeated up to a minute later, and may fail again
def test_a_stopped_worker_costs_the_checkpoint_not_the_run(tmp_path, easgd, calm):
    """SIGSTOP: the checkpoint barrier is given up after its time, the other worker goes on. Then Ctrl-C."""
    settings = {**SMALL, **calm, "steps": 100_000, "checkpoint_every": 0.2}
    process = easgd("train", *flags(settings), "--out", "run", "--plain")
    folder = RunFolder(tmp_path / "run")
    wait_for(lambda: Checkpoints(folder.checkpoints).whole(), process)
    victim = children(process.pid)[0]
    records = [folder.path / f"records-{rank}-0.jsonl" for rank in (0, 1)]
    try:
        stop_outside_the_center(victim, records)
        sizes = [path.stat().st_size for path in records]
        drafts = lambda: list(folder.checkpoints.glob(".[0-9]*"))  # noqa: E731
        wait_for(drafts, process)
        wait_for(lambda: not drafts(), process)  # given up
        wait_for(lambda: any(p.stat().st_size > s + 20_000 for p, s in zip(records, sizes, strict=True)), process)
    finally:
        os.kill(victim, signal.SIGCONT)
    newest = Checkpoints(folder.checkpoints).whole()[0].name
    wait_for(lambda: Checkpoints(folder.checkpoints).whole()[0].name > newest, process, seconds=500.0)
    ends_with_a_checkpoint(process, folder, signal.SIGINT)


@pytest.mark.parametrize("method", ["mdownpour", "mvadownpour", "admm", "asgd"])
def test_the_state_of_every_kind_of_method_is_saved(tmp_path, method):
    settings = {**SMALL, "method": method, "steps": 10, "workers": 1 if method == "asgd" else 2}
    run = library.train(settings, tmp_path / "run")
    first = Checkpoints(run.path / "checkpoints").load()
    library.resume(run.path)
    second = Checkpoints(run.path / "checkpoints").load()
    assert same(first["center"], second["center"])
    for state in (first, second):
        state["worker-0"]["loader"].pop("cursors")
    assert same(first["worker-0"], second["worker-0"])
    assert second["center"]["version"] > 0
    assert set(second["center"]["slots"]) > {"x"} or method == "admm"


def test_a_snapshot_that_is_damaged_is_passed_over(tmp_path, capsys):
    run = library.train({**SMALL, "steps": 5}, tmp_path / "run")
    folder, before = RunFolder(run.path), len(run.evaluations)
    checkpoint.save(folder.snapshots / "000099.safetensors", {"facts": {}, "center": {}})
    path = folder.snapshots / "000099.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    from easgd.training.evaluator import measure_waiting
    from easgd.training.task import Task

    assert measure_waiting(folder, Task(run.config)) == 0
    assert "000099" in capsys.readouterr().err
    assert not waiting(folder)
    assert len(run.evaluations) == before


def test_help_answers_at_once(easgd):
    """The bound is 0.3 s on an idle machine; here it is that torch stays out of it."""
    process = easgd("train", "--help")
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 0
    assert "easgd train --resume" in out
    code = "import sys, easgd.cli as c; c.main(['train', '--help']); print('torch' in sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "False"


PLAN = """
[[fault]]
worker = 1
time = 0.5
what = "death"

[[fault]]
worker = 1
time = 1.0
what = "join"

[[fault]]
worker = 0
time = 1.5
what = "pause"
amount = 0.3

[[fault]]
worker = 0
time = 0.0
what = "slow"
amount = 2.0
"""


@pytest.mark.heavy
def test_a_plan_of_faults_happens_to_real_processes(tmp_path, easgd):
    """Cases 1, 4, 5, 6, as data: what the simulator runs on the virtual clock."""
    (tmp_path / "plan.toml").write_text(PLAN)
    settings = {**SMALL, "steps": 1_000_000, "seconds": 5, "faults": tmp_path / "plan.toml"}
    process = easgd("train", *flags(settings), "--out", "run", "--plain", "--history")
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    events = [r for r in library.Run(tmp_path / "run").records() if not isinstance(r, Step)]
    faults = [(r.worker, r.detail) for r in events if r.event == "fault"]
    assert faults == [(1, "death"), (1, "join"), (0, "pause"), (0, "continue")]
    assert [r.worker for r in events if r.event == "death"] == [1]
    assert {(r.event, r.worker) for r in events} >= {("leave", 0), ("leave", 1)}, "the second incarnation ends well"
    follows(tmp_path / "run")
