"""Copies from and to devices, in many orders that their streams may take; a wait that is left out is seen."""

import pytest
import torch

from easgd import device_copies
from easgd.device_copies import DeviceCopies
from scripted_device import Device

SEEDS = range(60)
FIRST, SECOND, HOST = torch.device("cuda:0"), torch.device("cuda:1"), torch.device("cpu")
WHERE = [FIRST, FIRST, SECOND, HOST, FIRST]  # a model over two devices and the host, not in order
SIZES = [2, 1, 3, 2, 1]
X = torch.arange(9.0)


@pytest.fixture
def scripted(monkeypatch):
    """Return a function that makes a device with seed and missing waits, and copies that use it."""

    def make(seed, missing=()):
        device = Device(seed, missing)
        monkeypatch.setattr(device_copies, "backend_for", lambda devices: device)
        return device, [p.clone() for p in torch.split(X, SIZES)], DeviceCopies(SIZES, WHERE)

    return make


def compute(device, params, change):
    """What a training script does: on each device's compute stream, in the order of the program."""
    for p, where in zip(params, WHERE, strict=True):
        if where == HOST:
            change(p)
        else:
            device.compute(where).run(lambda p=p: change(p))


def finished(device, params):
    device.finish()
    return torch.cat(params)


def reads_and_steps(device, params, copies):
    """Each message is x as it was when it was read, whatever the steps after it; it is used after a wait."""
    seen = []
    for step in range(3):
        message = copies.read(params)
        compute(device, params, lambda p: p.add_(100.0))
        copies.wait()
        seen.append(torch.equal(message, X + 100.0 * step))
    return all(seen) and torch.equal(finished(device, params), X + 300.0)


def exchanges(device, params, copies):
    """EASGD's: x is read, the center answers in the message's memory, the step is taken, the answer is added."""
    for _ in range(3):
        message = copies.read(params)
        copies.wait()
        message.fill_(0.5)
        copies.send(message)
        compute(device, params, lambda p: p.mul_(2.0))
        copies.apply(lambda ps, ds: torch._foreach_add_(ps, ds, alpha=-1.0), params, message)
    return torch.equal(finished(device, params), X * 8 - 0.5 * 7)


def answers_in_other_memory(device, params, copies):
    """Vectors that are not pinned, one after the other; the caller uses their memory again at once."""
    for value in (1.0, 2.0, 4.0):
        vector = torch.full((9,), value)
        copies.apply(torch._foreach_add_, params, vector)
        vector.fill_(1e9)
    return torch.equal(finished(device, params), X + 7.0)


def a_message_after_an_answer_that_nobody_took(device, params, copies):
    """A worker that was reset does not use the answer, which is still on its way when x is read again."""
    copies.send(torch.full((9,), 1e9))
    message = copies.read(params)
    copies.wait()
    return torch.equal(message, X)


def the_same_vector_again(device, params, copies):
    """What was sent ahead is not there any more after another use of the staging vector, nor after it was added."""
    vector = torch.ones(9)
    copies.send(vector)
    copies.read(params)
    copies.apply(torch._foreach_add_, params, vector)
    vector.fill_(2.0)
    copies.apply(torch._foreach_add_, params, vector)
    return torch.equal(finished(device, params), X + 3.0)


SCRIPTS = [
    reads_and_steps,
    exchanges,
    answers_in_other_memory,
    a_message_after_an_answer_that_nobody_took,
    the_same_vector_again,
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_order_of_the_streams_gives_the_same_numbers(scripted, script):
    assert all(script(*scripted(seed)) for seed in SEEDS)


@pytest.mark.parametrize(
    ("script", "missing"),
    [
        (reads_and_steps, "copy"),  # the copy to the host begins before x is in the staging vector
        (reads_and_steps, "host"),  # the message is sent before it is there
        (exchanges, "compute"),  # the answer is added before it has come
        (exchanges, "copy"),
        (answers_in_other_memory, "compute"),
        (answers_in_other_memory, "copy"),  # the next answer overwrites one that is yet to be added
        (answers_in_other_memory, "host"),  # pinned memory is used again while it is being copied from
        (a_message_after_an_answer_that_nobody_took, "compute"),  # the staging vector is used under a copy
    ],
)
def test_a_missing_wait_is_seen(scripted, script, missing):
    assert not all(script(*scripted(seed, [missing])) for seed in SEEDS)


def test_what_nesterov_is_ahead_is_added_on_the_device(scripted):
    for seed in SEEDS:
        _, params, copies = scripted(seed)
        ahead = [(0, torch.tensor([1.0, 2.0]), 0.5), (3, torch.tensor([1.0, 1.0]), -1.0)]
        message = copies.read(params, ahead)
        copies.wait()
        assert message.tolist() == [0.5, 2, 2, 3, 4, 5, 5, 6, 8]
        assert torch.equal(torch.cat(params), X), "the parameters themselves stay"


def test_neighbours_are_copied_at_once(scripted, monkeypatch):
    device, params, copies = scripted(0)
    seen, plain = [], torch.Tensor.copy_
    monkeypatch.setattr(torch.Tensor, "copy_", lambda t, s, **k: seen.append(s.numel()) or plain(t, s, **k))
    copies.read(params)
    device.finish()
    assert sorted(seen) == [1, 3, 3], "two and one of the first device's elements are neighbours, one is not"
