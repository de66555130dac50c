"""Parameters that are not in host memory, as far as a machine without an accelerator can show it.

The tensors here say that they lie on `cuda:1` and are in host memory all the same. So these tests see which way the
code takes, what it waits for and that the numbers arrive; that a real device copies as it should, they cannot see.
"""

import pytest
import torch
from torch import nn

import easgd
from easgd.flat import Replica

DEVICE = torch.device("cuda:1")


class Elsewhere(torch.Tensor):
    """A tensor that claims to lie on another device."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func == torch.Tensor.device.__get__:
            return DEVICE
        if func == torch.Tensor.is_cuda.__get__:
            return True
        return super().__torch_function__(func, types, args, kwargs or {})


class Stream:
    def __init__(self, log, device):
        self.log, self.device = log, device

    def synchronize(self):
        self.log.append(("waited for", self.device))


@pytest.fixture
def log(monkeypatch):
    """What was asked of the device: pinned memory, copies towards it, waiting for its stream."""
    seen, empty, to = [], torch.empty, torch.Tensor.to

    def pinned_empty(*args, pin_memory=False, **kwargs):
        if pin_memory:
            seen.append(("pinned", args[0]))
        return empty(*args, **kwargs)

    def towards(tensor, *args, **kwargs):
        if args and args[0] == DEVICE:
            seen.append(("sent", tensor.numel()))
            return tensor
        return to(tensor, *args, **kwargs)

    monkeypatch.setattr(torch, "empty", pinned_empty)
    monkeypatch.setattr(torch.Tensor, "to", towards)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: Stream(seen, device))
    return seen


def elsewhere():
    params = [torch.arange(6.0).view(2, 3), torch.arange(4.0)]
    return [nn.Parameter(p.as_subclass(Elsewhere)) for p in params]


class Model(nn.Module):
    """Its forward has nothing to compute, and begins a step all the same."""

    def __init__(self):
        super().__init__()
        self.weight, self.bias = elsewhere()

    def forward(self):
        return None


def test_a_replica_on_a_device_passes_through_pinned_memory(log):
    params = elsewhere()
    replica = Replica(params, torch.optim.SGD(params, lr=0.1))
    assert replica.in_place() is None, "the center cannot reach it: an exchange takes a message"
    x = replica.read()
    assert log == [("pinned", 10), ("waited for", DEVICE)], "nothing is read before the copies are done"
    assert type(x) is torch.Tensor
    assert x.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    assert replica.read().data_ptr() == x.data_ptr(), "the staging memory is made once"
    log.clear()
    replica.add_(torch.ones(10), alpha=-1.0)
    assert log == [("sent", 6), ("sent", 4)]
    assert replica.read().tolist() == [-1, 0, 1, 2, 3, 4, -1, 0, 1, 2]
    replica.write_(torch.zeros(10))
    assert not replica.read().any()


def test_an_exchange_by_message_where_a_move_is_not_possible(log, tmp_path, monkeypatch):
    """x = x̃ + 1 everywhere, α = 1/4: d = 1/4, whichever way the exchange takes."""
    for name, value in {"EASGD_RUN": tmp_path, "EASGD_RANK": 0, "EASGD_WORKERS": 1}.items():
        monkeypatch.setenv(name, str(value))
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=1, moving_rate=0.25))
    before = worker.client.snapshot()["x"]
    worker.client.segment.slots["x"].sub_(1.0)
    model()
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    torch.testing.assert_close(worker.replica.read(), before - 0.25)
    torch.testing.assert_close(worker.client.snapshot()["x"], before - 0.75)
    worker.close()
