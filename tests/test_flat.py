"""Parameters that are not in host memory, as far as a machine without an accelerator can show it.

Two kinds of pretence. Tensors that say that they lie on `cuda:1` and have their numbers in host memory, with scripted
streams: the numbers arrive, in the right order. And torch's fake tensors, which have a device and no numbers: no
operation mixes devices. That a real device copies as it should, only `test_on_accelerator.py` can see.
"""

import threading

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

import easgd
from easgd import device_copies
from easgd.flat import Replica
from scripted_device import Device

ELSEWHERE = torch.device("cuda:1")


class Elsewhere(torch.Tensor):
    """A tensor that claims to lie on another device."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func == torch.Tensor.device.__get__:
            return ELSEWHERE
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.fixture
def device(monkeypatch):
    """A device that computes at once, as these tensors do, and copies as late as it may."""
    device = Device(immediate=True)
    monkeypatch.setattr(device_copies, "backend_for", lambda devices: device)
    return device


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


def test_a_replica_on_a_device_passes_through_pinned_memory(device):
    params = elsewhere()
    replica = Replica(params, torch.optim.SGD(params, lr=0.1))
    assert replica.in_place() is None, "the center cannot reach it: an exchange takes a message"
    x = replica.read()
    assert type(x) is torch.Tensor
    assert x.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    assert replica.read().data_ptr() == x.data_ptr(), "the staging memory is made once"
    replica.add_(torch.ones(10), alpha=-1.0)
    assert replica.read().tolist() == [-1, 0, 1, 2, 3, 4, -1, 0, 1, 2]
    replica.write_(torch.zeros(10))
    assert not replica.read().any()
    replica.reset_(torch.ones(10))
    assert replica.read().eq(1).all()


def test_reading_ahead_returns_before_the_copy(device):
    params = elsewhere()
    replica = Replica(params, torch.optim.SGD(params, lr=0.1))
    with replica.unawaited():
        x = replica.read()
    assert x.isnan().all()
    assert device.host_waits == []
    with torch.no_grad():
        params[0].zero_()  # the step of an optimizer
    replica.wait()
    assert x.tolist() == [0, 1, 2, 3, 4, 5, 0, 1, 2, 3]
    assert replica.read().tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 2, 3], "later reads are awaited again"


def test_a_lone_flat_parameter_elsewhere_is_copied_too(device):
    """In host memory it is the vector itself; a center in host memory cannot reach it on a device."""
    p = nn.Parameter(torch.arange(3.0).as_subclass(Elsewhere))
    replica = Replica([p], torch.optim.SGD([p], lr=0.1))
    x = replica.read()
    assert x.tolist() == [0, 1, 2]
    assert not replica.owns(x), "an answer may overwrite the message"
    x.fill_(1.0)
    replica.add_(x)
    assert p.tolist() == [1, 2, 3]
    simulated = Replica([p], torch.optim.SGD([p], lr=0.1), in_host_memory=False)
    assert simulated.read().data_ptr() == p.data_ptr(), "a simulation keeps its center where x is"


def test_a_model_that_moves_after_attach(device):
    p = nn.Parameter(torch.arange(3.0))
    replica = Replica([p], torch.optim.SGD([p], lr=0.1))
    assert replica.owns(replica.read())
    p.data = torch.arange(3.0) + 1
    replica.add_(torch.ones(3))
    assert replica.read().tolist() == [1, 2, 3], "its memory was replaced"
    replica.params[0] = p.detach().as_subclass(Elsewhere)
    replica.write_(torch.zeros(3))
    assert replica.params[0].tolist() == [0, 0, 0]
    device.host_waits.clear()
    replica.params[0] = torch.ones(3)
    assert replica.read().tolist() == [1, 1, 1]
    assert device.host_waits, "no copy was under way when its memory was given up"


def test_the_position_behind_nesterovs_point(device):
    """Two steps with δ = 0.5, η = 0.1 and g = 1: v = −0.1, then −0.15; x = −0.25 where torch has y = x + δv."""
    p = nn.Parameter(torch.zeros(2, 2).as_subclass(Elsewhere))
    optimizer = torch.optim.SGD([p], lr=0.1, momentum=0.5, nesterov=True, foreach=False)
    replica = Replica([p], optimizer)
    for _ in range(2):
        p.grad = torch.ones(2, 2)
        optimizer.step()
    torch.testing.assert_close(replica.position(), torch.full((4,), -0.25))
    torch.testing.assert_close(replica.read(), torch.full((4,), -0.325))


def test_the_training_thread_waits_for_no_copy(device, tmp_path, monkeypatch):
    """x = x̃ + 1 everywhere, α = 1/4: d = 1/4, from the x before the step, though the copy was made after it."""
    for name, value in {"EASGD_RUN": tmp_path, "EASGD_RANK": 0, "EASGD_WORKERS": 1}.items():
        monkeypatch.setenv(name, str(value))
    model, stepped = Model(), threading.Event()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer.register_step_post_hook(lambda *_: stepped.set())  # before the worker's own
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=1, moving_rate=0.25), overlap=True)
    wait = worker.replica.wait
    monkeypatch.setattr(worker.replica, "wait", lambda: stepped.wait(30) and wait())
    before = worker.client.snapshot()["x"]
    worker.client.segment.slots["x"].sub_(1.0)
    device.host_waits.clear()
    device.given.clear()
    model()
    for p in model.parameters():
        p.grad = torch.full_like(p, 8.0)
    optimizer.step()
    assert device.host_waits == ["easgd-exchange_0"]
    main, carrier = threading.current_thread().name, "easgd-exchange_0"
    expected = [("compute", main), ("copy", main), ("copy", carrier), ("compute", main)]
    assert device.given == expected, "the answer was sent ahead"
    torch.testing.assert_close(worker.replica.read(), before - 8.0 - 0.25)
    torch.testing.assert_close(worker.client.snapshot()["x"], before - 0.75)
    worker.close()


def test_a_message_that_a_method_computes_is_awaited():
    class Halved(easgd.EASGD):
        def send(self, replica, state):
            return replica.read() / 2

    assert easgd.EASGD.sends_local
    assert easgd.EAMSGD.sends_local
    assert not Halved.sends_local
    assert not easgd.Downpour.sends_local


class OneDevice(TorchFunctionMode):
    """Lets fake tensors be copied between devices and refuses any other mixture, also where torch does not look."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.Tensor.copy_:
            assert {args[0].device.type, args[1].device.type} & {"cpu"} or args[0].device == args[1].device
            func = torch.ops.aten.copy_.default  # the method wants a real device
        elif func in (torch._foreach_copy_, torch._foreach_add_):
            assert all(a.device == b.device for a, b in zip(*args[:2], strict=True)), args
        return func(*args, **(kwargs or {}))


class FakeDevice(Device):
    def staging(self, size, device):
        return torch.empty(size, device=device)

    def pinned(self, size):
        return torch.empty(size)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_operation_mixes_devices(monkeypatch, dtype):
    """A model over two devices and the host, channels_last weights, Nesterov's buffers."""
    device = FakeDevice(immediate=True)
    monkeypatch.setattr(device_copies, "backend_for", lambda devices: device)
    with FakeTensorMode(), OneDevice():
        params = [
            torch.empty(4, 3, 3, 3, dtype=dtype, device="cuda:0").to(memory_format=torch.channels_last),
            torch.empty(4, dtype=dtype, device="cuda:0"),
            torch.empty(2, 4, dtype=dtype, device="cuda:1"),
            torch.empty(2, 2, dtype=dtype),
            torch.empty(2, dtype=dtype, device="cuda:0"),
        ]
        optimizer = torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True)
        for p in params:
            optimizer.state[p]["momentum_buffer"] = torch.empty_like(p)
        replica = Replica(params, optimizer)
        for vector in (replica.read(), replica.position()):
            assert vector.device.type == "cpu"
            assert vector.dtype == torch.float32
            assert vector.numel() == replica.size
        replica.add_(torch.empty(replica.size), alpha=-1.0)
        replica.send(vector)
        replica.add_(vector)
        replica.reset_(torch.empty(replica.size))
    assert {where.index for _, where in device.streams} == {0, 1}


def test_a_schedule_free_replica_elsewhere_waits_for_what_it_changes(device):
    """y = 0 and z = −2 with β = 1/2: x = y + (1 − 1/β)(z − y) = 2."""
    from easgd.worker.schedule_free import ScheduleFreeReplica

    p = nn.Parameter(torch.zeros(3).as_subclass(Elsewhere))
    optimizer = torch.optim.SGD([p], lr=0.1, momentum=0.5)
    optimizer.param_groups[0]["train_mode"] = True
    optimizer.state[p]["z"] = torch.full((3,), -2.0)
    replica = ScheduleFreeReplica([p], optimizer)
    with replica.unawaited():
        assert replica.position().tolist() == [2, 2, 2]
