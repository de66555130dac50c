"""The history of a center in shared memory, written by real processes, some of which are killed while they exchange."""

import os
import signal
import time

import pytest
import torch

import easgd
from easgd.center.check_history import check_folder
from easgd.center.client import JoinRequest
from easgd.center.layout import Layout
from easgd.engines.local import recording
from easgd.engines.local.client import SharedMemoryClient, read_center
from easgd.engines.local.control import mark_dead
from easgd.launch.backend import RunRequest
from easgd.launch.run_directory import OwnedRun
from easgd.launch.target import TerminatedError, obey_signals
from processes import FRESH

N = 540_000  # two stripes
ELASTIC = easgd.EASGD(period=1, moving_rate=0.3)


def open_center(folder, rank, method, n=N, incarnation=0):
    layout = Layout(("w",), ((n,),), ((1,),), ("torch.float32",))
    request = JoinRequest(method, torch.zeros(n), layout, rank, incarnation, history=folder / "history")
    center = SharedMemoryClient(folder, request)
    center.join(incarnation)
    return center


def checked(folder):
    recording.end(folder)
    report = check_folder(folder / "history" / "center")
    assert report.differences == [], str(report)
    assert torch.equal(report.measured, read_center(folder)["w"])
    return report


@pytest.mark.parametrize(
    "method",
    [
        ELASTIC, easgd.Downpour(), easgd.MDownpour(), easgd.ADownpour(),
        easgd.EASGD(period=4, fragments=4), easgd.AsyncDiLoCo(period=2),
    ],
)  # fmt: skip
def test_messages_of_two_workers_replay(tmp_path, method):
    first = open_center(tmp_path, 0, method, n=1000)
    second = open_center(tmp_path, 1, method, n=1000)
    generator = torch.Generator().manual_seed(0)
    for k in range(6):
        for center in (first, second):
            a, b = center.segment.fragments[k % method.fragments]
            assert center.exchange(torch.randn(b - a, generator=generator), 0.3, k % method.fragments) is not None
    second.begin_average()
    first.exchange(torch.ones(first.segment.fragments[0][1]), 0.3)
    first.leave()
    second.leave()
    report = checked(tmp_path)
    assert report.rolls == 4
    assert report.exchanges == 13


def test_moves_in_place_replay(tmp_path):
    center = open_center(tmp_path, 0, ELASTIC)
    x = torch.randn(N, generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        assert center.move([(x[:1000], 1.0), (x[1000:], 0.9)], 0.3, 0)
    center.leave()
    assert checked(tmp_path).exchanges == 6  # two stripes


def test_a_signal_does_not_break_up_a_stripe(tmp_path, monkeypatch):
    """Case 32: SIGTERM comes when one of two pieces has moved; both move, the clock ticks, then it is obeyed."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    center = open_center(tmp_path, 0, ELASTIC, n=1000)
    move = center.states[0].move_

    def told_to_end(*what):
        signal.raise_signal(signal.SIGTERM)
        return move(*what)

    monkeypatch.setattr(center.states[0], "move_", told_to_end)
    obey_signals()
    try:
        x = torch.ones(1000)
        with pytest.raises(TerminatedError):
            center.move([(x[:400], 1.0), (x[400:], 1.0)], 0.3, 0)
    finally:
        monkeypatch.undo()
        for number, handler in before.items():
            signal.signal(number, handler)
    assert torch.equal(x, torch.full((1000,), 0.7))
    assert center.version == 1
    assert center.exchange(torch.ones(1000), 0.3) is not None, "the last exchange"
    center.leave()
    assert checked(tmp_path).exchanges == 2


SYNC = easgd.EASGD(period=1, moving_rate=0.3, sync=True)


def meet(center, rank):
    while len(center.control.joined()) < 2:
        time.sleep(0.01)
    for _ in range(5):
        center.exchange_together(torch.full((N,), rank + 1.0), 0.3, 60.0)
    center.leave()


def meet_in_a_process(folder):
    meet(open_center(folder, 1, SYNC), 1)


def spawned(target, *args):
    process = FRESH.Process(target=target, args=args)
    process.start()
    return process


def test_rounds_replay_as_the_sums_that_they_were(tmp_path):
    other = spawned(meet_in_a_process, tmp_path)
    meet(open_center(tmp_path, 0, SYNC), 0)
    other.join(100)
    assert other.exitcode == 0
    assert checked(tmp_path).exchanges == 10  # two stripes, five rounds


def exchange_and_die(folder, elements):
    """Two whole exchanges, then one that ends with SIGKILL when some elements of the first stripe have been changed."""
    center = open_center(folder, 1, ELASTIC)
    x = torch.full((N,), 2.0)
    for _ in range(2):
        x -= center.exchange(x.clone(), 0.3)
    first = center.states[center._order[0][0]]
    whole = first._fused

    def cut_short(message, scale, version):
        part = torch.from_numpy(message).clone()
        kept = first.x.clone()
        whole(part.numpy(), scale, version)
        first.x[elements:] = kept[elements:]
        os.kill(os.getpid(), signal.SIGKILL)

    first._fused = cut_short
    center.exchange(x, 0.3)


@pytest.mark.parametrize("elements", [0, 12_345])
def test_a_worker_killed_inside_a_stripe_is_accounted_for_to_the_element(tmp_path, elements):
    """Cases 1, 2: what was cut short is in the center up to one element, and nothing is applied twice."""
    center = open_center(tmp_path, 0, ELASTIC)
    center.exchange(torch.ones(N), 0.3)
    process = spawned(exchange_and_die, tmp_path, elements)
    process.join(100)
    assert process.exitcode == -signal.SIGKILL
    mark_dead(tmp_path, 1, 0)
    center.exchange(torch.ones(N), 0.3)
    center.leave()
    report = checked(tmp_path)
    assert report.exchanges == 2 * 4  # on two stripes
    assert report.rolls == 4
    assert [note.partition(" was ")[2] for note in report.notes] == [f"cut short after {elements} of 270000 elements"]


def test_an_update_that_is_lost_is_found(tmp_path):
    """Were the lock of a stripe not taken, one worker would write over what another has added."""
    center = open_center(tmp_path, 0, ELASTIC, n=100)
    center.exchange(torch.ones(100), 0.3)
    before = center.states[0].x.clone()
    center.exchange(torch.ones(100), 0.3)
    center.states[0].x.copy_(before)
    center.exchange(torch.ones(100), 0.3)
    center.leave()
    recording.end(tmp_path)
    found = str(check_folder(tmp_path / "history" / "center"))
    assert "elements 0 to 100, version 2, worker 0 incarnation 0 exchange 2: x̃ was found with another digest" in found


def test_nothing_of_a_run_is_open_to_other_users(shared):
    """Case 36: whatever the umask, nobody else can enter the folder that the center, its locks and its owner are in."""
    before = os.umask(0)
    try:
        run = OwnedRun(RunRequest(["script", "train.py"], 1, "run-1"))
        open_center(run.path, 0, ELASTIC, n=100).leave()
    finally:
        os.umask(before)
    try:
        assert {"center", "locks", "owner", "header.json"} <= {path.name for path in run.path.iterdir()}
        for folder in (run.path, run.path.parent):
            found = folder.stat()
            assert (found.st_mode & 0o777, found.st_uid) == (0o700, os.getuid()), folder
    finally:
        run.close()


@pytest.mark.parametrize("stage", ["segment.write_json", "recording.begin", "recording.Path.rename"])
def test_a_first_worker_killed_while_it_lays_out_the_center_costs_no_history(tmp_path, monkeypatch, stage):
    """Before the header, before the start value, in the middle of it: the next worker does what is left."""

    def killed(*_):
        raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr(f"easgd.engines.local.{stage}", killed)
        with pytest.raises(InterruptedError):
            open_center(tmp_path, 0, ELASTIC, n=1000)
    center = open_center(tmp_path, 1, ELASTIC, n=1000)
    assert center.exchange(torch.ones(1000), 0.3) is not None
    center.leave()
    assert checked(tmp_path).exchanges == 1


def test_a_run_whose_workers_never_began_has_an_empty_history(tmp_path, monkeypatch):
    def killed(*_):
        raise InterruptedError

    with monkeypatch.context() as patch:
        patch.setattr("easgd.engines.local.recording.begin", killed)
        with pytest.raises(InterruptedError):
            open_center(tmp_path, 0, ELASTIC, n=1000)
    recording.end(tmp_path)
    assert check_folder(tmp_path / "history" / "center").differences == []
