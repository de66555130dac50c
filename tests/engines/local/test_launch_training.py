"""The launcher and a real center: it hears of deaths, and its value outlives the workers."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import easgd
import tasks
from easgd.records import Event, Step, parse, read_records
from histories import follows
from launching import launcher_events, until

# One step at a time, with time for others; `seen-<rank>` is the number of living workers that a worker last saw.
TRAINING = """
import torch, easgd
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
worker = easgd.attach(model, optimizer, easgd.EASGD(period=1, beta=0.9))
seen = None
while not (out / "go").exists():
    loss = model(torch.ones(4, 3)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if seen != worker.client.living:
        seen = worker.client.living
        (out / f".seen-{rank}").write_text(str(seen))
        (out / f".seen-{rank}").rename(out / f"seen-{rank}")
    if worker.clock == 1:
        up()
    time.sleep(0.01)
"""


def seen(one, rank):
    path = one.out / f"seen-{rank}"
    return path.read_text() if path.exists() else ""


def test_a_restarted_worker_is_counted_and_a_dead_one_is_not(launched):
    def kill_twice(one):
        one.pids(2)
        until(lambda: seen(one, 0) == "2", "both are counted")
        os.kill(one.pid(1), signal.SIGKILL)
        again = one.pid(1, 1)
        until(lambda: seen(one, 0) == "2" == seen(one, 1), "the restarted one is in the run")
        os.kill(again, signal.SIGKILL)
        until(lambda: seen(one, 0) == "1", "no restart is left: the survivor's α follows")
        one.touch("go")

    code, out, _, folder = launched(TRAINING, "--restarts", "1", "--history", workers=2, beside=kill_twice)
    assert code == 1
    # The time split; a worker killed in its first half second has written no step yet, so 1 may be missing.
    assert [line.split()[0] for line in out.splitlines()][:2] == ["worker", "0"]
    assert "compute/data/communication" in out
    center = load_file(folder / "center.safetensors")
    assert {name: tuple(value.shape) for name, value in center.items()} == {"weight": (2, 3), "bias": (2,)}
    assert all(value.isfinite().all() for value in center.values())
    (report,) = follows(folder)
    assert report.rolls >= 5  # two joins, a death, a join, a death; one that leaves


@pytest.mark.heavy
def test_a_late_joiner_starts_from_the_center_and_is_counted(launch):
    one = launch(TRAINING, "--history", workers=1)
    two = launch(TRAINING, "--join", Path(one.run).name, where="b")
    until(lambda: seen(one, 0) == "2", "the joiner is counted")
    one.pid(1)
    two.process.send_signal(signal.SIGINT)
    assert two.wait()[0] == 130
    until(lambda: seen(one, 0) == "1", "it has left")
    one.touch("go")
    assert one.wait()[0] == 0
    follows(one.out)


def test_one_ten_times_slower_holds_up_nobody(tmp_path):
    """Case 12: the slow one waits for ten steps of all others before each of its own."""
    result = easgd.run(tasks.ten_times_slower, 3, "local", (str(tmp_path),))
    assert result.exit_codes == [0, 0, 0]
    steps = [sum(isinstance(r, Step) and r.worker == rank for r in result.records) for rank in range(3)]
    assert steps == [200, 200, 20]


@pytest.mark.heavy
def test_the_ring_takes_a_late_joiner_in_and_lets_it_go(launch):
    """Round-robin among three: between two turns of one worker, each of the other two has updated the center once."""
    one = launch(TRAINING, "--schedule", "round-robin", "--history", workers=2)
    one.pids(2)
    two = launch(TRAINING, "--join", Path(one.run).name, where="b")
    until(lambda: seen(one, 0) == "3" == seen(one, 2), "the joiner is counted, and has had a turn")
    until(lambda: len(staleness(one, 2)) > 5, "its turn comes again and again")
    two.process.send_signal(signal.SIGINT)
    assert two.wait()[0] == 130
    until(lambda: seen(one, 0) == "2" == seen(one, 1), "it has left, and the ring closes behind it")
    one.touch("go")
    assert one.wait()[0] == 0
    assert set(staleness(one, 2)[1:]) == {2}
    assert staleness(one, 0)[-1] <= 2
    follows(one.out)


def staleness(one, rank):
    """Of the steps that a worker has written down so far."""
    path = one.out / f"records-{rank}-0.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    records = [json.loads(line) for line in lines if line.endswith("\n")]
    return [r["staleness"] for r in records if r.get("staleness") is not None]


def test_the_center_outlives_its_workers(launched):
    def kill_all(one):
        for pid in one.pids(2):
            os.kill(pid, signal.SIGKILL)

    code, _, err, folder = launched(TRAINING, "--history", workers=2, beside=kill_all)
    assert code == 1
    assert "the center is saved" in err
    assert set(load_file(folder / "center.safetensors")) == {"weight", "bias"}
    follows(folder)


def train(steps: int) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    easgd.attach(model, optimizer, easgd.EASGD(period=1, beta=0.9))
    for _ in range(steps):
        optimizer.zero_grad()
        (model(torch.ones(1, 1)) - 3).square().sum().backward()
        optimizer.step()


def test_run_returns_the_center():
    result = easgd.run(train, workers=2, args=(60,))
    assert result.exit_codes == [0, 0]
    assert result.center is not None
    assert float(result.center["weight"]) == pytest.approx(3.0, abs=0.1), "the minimum of (w - 3)²"
    assert result.breakdown().steps == 60


DIVERGING = """
import torch, easgd
torch.manual_seed(0)
torch.set_num_threads(1)
inputs = torch.randn(256, 8)
targets = inputs @ torch.randn(8, 1)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=5.0 if rank == 1 else 0.05)
worker = easgd.attach(model, optimizer, easgd.EASGD(period=5, beta=0.9), overlap=False)
up()
for step in range(300):
    rows = torch.randint(0, 256, (16,))
    loss = (model(inputs[rows]) - targets[rows]).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("schedule", ["async", "sync", "round-robin"])
def test_one_worker_diverges_and_the_others_do_not_notice(launched, schedule):
    """Case 31: a hundred times the rate; its exit code and the records say what became of it."""
    code, _, err, folder = launched(DIVERGING, "--schedule", schedule, workers=3)
    assert code == 3
    assert "worker 1 ends apart from the center" in err
    # The center of the end: one worker may be done before another has begun, and sees it in between.
    torch.manual_seed(0)
    inputs = torch.randn(256, 8)
    targets, center = inputs @ torch.randn(8, 1), load_file(folder / "center.safetensors")
    assert float((inputs @ center["weight"].T + center["bias"] - targets).square().mean()) < 1e-3
    refused = [r for r in read_records(folder) if isinstance(r, Event) and r.event == "refused"]
    assert {r.worker for r in refused} == {1}
    assert {e["worker"] for e in launcher_events(folder, "leave")} == {0, 2}


def test_a_worker_that_is_told_to_end_brings_its_steps_to_the_center_first(launch):
    """Case 32: a period that is never over; without a last exchange the center would be where it began."""
    one = launch(TRAINING.replace("period=1", "period=100000"), "--history", workers=3)
    one.pids(3)
    for rank, number in ((1, signal.SIGTERM), (2, signal.SIGINT)):
        os.kill(one.pid(rank), number)
        until(lambda rank=rank: rank in {e["worker"] for e in one.events("death")}, "its end is recorded")
        path = one.out / f"records-{rank}-0.jsonl"
        records = [r for r in map(parse, path.read_bytes().splitlines()) if isinstance(r, Event)]
        assert [r.event for r in records][-2:] == ["last exchange", "leave"]
    one.process.send_signal(signal.SIGTERM)
    assert one.wait()[0] == 128 + signal.SIGTERM
    last = [r.detail for r in read_records(one.out) if isinstance(r, Event) and r.event == "last exchange"]
    steps = {r.worker: r.clock for r in read_records(one.out) if isinstance(r, Step)}
    assert sorted(last) == sorted(f"step {clock + 1}" for clock in steps.values()), "zero steps are lost"
    follows(one.out)
