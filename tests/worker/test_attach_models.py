"""`attach` on one worker, whatever the model is made of and however it is trained."""

import copy

import pytest
import torch
from torch import nn

import easgd
from attaching import METHODS, X, batch, loss_of, net, train
from easgd.flat import pack


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["eamsgd", "averaged", "easgd", "msgd", "sgd"])
def test_a_lone_flat_parameter_is_not_overwritten_by_an_answer(run_folder, name, dtype):
    model = nn.ParameterList([nn.Parameter(torch.ones(3, dtype=dtype))])
    optimizer = METHODS[name].optimizer(list(model.parameters()), 0.1)
    worker = easgd.attach(model, optimizer, METHODS[name])
    for _ in range(3):
        (0.0 * model[0].sum()).backward()
        optimizer.step()
    worker.close()
    assert torch.equal(model[0].detach(), torch.ones(3, dtype=dtype))


def test_the_users_tensors_stay_theirs(run_folder):
    model = net()
    before = [(p, p.data_ptr(), p.stride()) for p in model.parameters()]
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    easgd.attach(model, optimizer, easgd.EASGD(period=2))
    train(model, optimizer)
    for (p, pointer, stride), now in zip(before, model.parameters(), strict=True):
        assert p is now
        assert (now.data_ptr(), now.stride()) == (pointer, stride)
    assert set(optimizer.state) == {p for p, _, _ in before}


class Odd(nn.Module):
    """Tied, frozen and unused parameters, several dtypes of buffers, a channels_last convolution."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.conv = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
        self.norm = nn.BatchNorm2d(4)
        self.encode = nn.Linear(4, 4, bias=False)
        self.decode = nn.Linear(4, 4, bias=False)
        self.decode.weight = self.encode.weight
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x):
        x = self.norm(self.conv(x)).mean((2, 3))
        return self.frozen(self.decode(self.encode(x).relu()))


@pytest.mark.parametrize("buffers", ["average", "local", "recalibrate"])
def test_odd_models(run_folder, buffers):
    model = Odd()
    frozen = copy.deepcopy(model.frozen.state_dict())
    groups = [{"params": model.conv.parameters(), "lr": 0.05}, {"params": [model.encode.weight, model.unused]}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)
    worker = easgd.attach(model, optimizer, easgd.EAMSGD(period=2, beta=0.5, momentum=0.9), buffers=buffers)
    x = torch.randn(8, 3, 5, 5, generator=torch.Generator().manual_seed(0)).to(memory_format=torch.channels_last)
    for _ in range(9):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    center = worker.center([x]) if buffers == "recalibrate" else worker.center()
    assert set(center) == set(model.state_dict())
    assert torch.equal(center["decode.weight"], center["encode.weight"])
    assert not torch.equal(center["encode.weight"], model.encode.weight)
    assert all(torch.equal(center[f"frozen.{k}"], v) for k, v in frozen.items())
    assert center["conv.weight"].stride() == model.conv.weight.stride()
    assert model.conv.weight.is_contiguous(memory_format=torch.channels_last)
    running = center["norm.running_mean"]
    assert torch.equal(running, model.norm.running_mean) == (buffers == "local")
    if buffers == "recalibrate":
        other = Odd()
        other.load_state_dict({**center})
        other.eval()
        expected = nn.functional.conv2d(x, center["conv.weight"], center["conv.bias"]).mean((0, 2, 3))
        torch.testing.assert_close(running, expected, rtol=1e-4, atol=1e-5)
    other = Odd()
    other.load_state_dict(center)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_meet_a_float32_center(run_folder, dtype):
    model = net().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=1, beta=0.5))
    for step in range(5):
        x, y = batch(0, step)
        nn.functional.cross_entropy(model(x.to(dtype)).float(), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert worker.client.segment.slots["x"].dtype == torch.float32
    assert all(p.dtype == dtype for p in model.parameters())
    assert all(v.dtype == dtype and v.isfinite().all() for v in worker.center().values())


def test_the_period_counts_optimizer_steps(run_folder):
    """Accumulated gradients, a skipped step, an evaluation in between: only optimizer steps move the clock."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=2))
    versions = []
    for step in range(6):
        for _ in range(3):
            (loss_of(model, batch(0, step)) / 3).backward()
        model.eval()
        model(X)
        model.train()
        if step == 3:
            optimizer.zero_grad()  # as a gradient scaler does when it finds an overflow: no step
            continue
        optimizer.step()
        optimizer.zero_grad()
        versions.append(worker.client.version)
    assert worker.clock == 5
    assert versions == [1, 1, 2, 2, 3]


@pytest.mark.parametrize("idle", [True, False])
def test_a_closure_and_a_loop_that_never_calls_forward(idle, run_folder, monkeypatch):
    monkeypatch.setattr("easgd.worker.exchange.idle_cores", lambda workers: idle)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=1, beta=0.5))

    def closure():
        optimizer.zero_grad()
        x, y = batch(0, 0)
        loss = nn.functional.cross_entropy(model[2](model[1](model[0](x))), y)
        loss.backward()
        return loss

    first = optimizer.step(closure).item()
    for _ in range(20):
        last = optimizer.step(closure).item()
    assert last < first
    assert worker.clock == 21
    worker.close()
    # A hidden exchange begins as soon as the step before has ended, here for a step that never comes.
    assert worker.client.version == (22 if idle else 21)


@pytest.mark.parametrize("first", ["compile", "attach", "attach, then in place"])
def test_a_compiled_model_is_the_same_model(first, run_folder):
    torch._dynamo.reset()  # what another test compiled would run again, without the hooks of this one
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    method = easgd.EASGD(period=1, beta=0.5)
    if first == "compile":
        compiled = torch.compile(model, backend="eager")
        worker = easgd.attach(compiled, optimizer, method)
    else:
        worker = easgd.attach(model, optimizer, method)
        compiled = torch.compile(model, backend="eager") if first == "attach" else model
        if compiled is model:
            model.compile(backend="eager")
    train(compiled, optimizer, 3)
    assert not worker._eager, "the model's forward begins the step"
    assert worker.client.version == 3
    assert set(worker.center()) == set(model.state_dict())


def test_a_whole_model_may_be_saved_and_copied(run_folder, tmp_path):
    """`torch.save(model, path)`, target networks, EMA: a copy is a plain model that tells no worker of its steps."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=1))
    train(model, optimizer, 2)
    torch.save(model, tmp_path / "model.pt")
    assert b"easgd" not in (tmp_path / "model.pt").read_bytes(), "it can be loaded where easgd is not installed"
    asked = []
    worker.begin = lambda: asked.append(1)
    x = torch.ones(2, 6)
    for copy_ in (torch.load(tmp_path / "model.pt", weights_only=False), copy.deepcopy(model)):
        assert torch.equal(copy_(x), model(x))
        asked.clear()
        copy_(x).sum().backward()
        assert torch.compile(copy_, backend="eager")(x).shape == (2, 3)
        assert not asked
    del worker.begin
    worker.close()


def test_packing_keeps_shapes_formats_and_values():
    model = Odd()
    before = copy.deepcopy(model.state_dict())
    vector, gradient = pack(model)
    assert vector.numel() == sum(p.numel() for p in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
        assert value.stride() == before[name].stride()
    vector.fill_(0.5)
    assert all((p == 0.5).all() for p in model.parameters())
    model(torch.randn(2, 3, 5, 5)).sum().backward()
    assert gradient.abs().sum() > 0
