"""What only a real accelerator can show; skipped where there is none (docs/accelerators.md says what to look for)."""

import copy

import pytest
import torch
from torch import nn

import easgd
from easgd import streams
from easgd.flat import Replica

DEVICES = torch.accelerator.device_count() if torch.accelerator.is_available() else 0
pytestmark = pytest.mark.skipif(DEVICES == 0, reason="this machine has no accelerator")


def kind():
    return torch.accelerator.current_accelerator().type


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The variables of a run with one worker; a center for each test."""
    for name, value in {"EASGD_RUN": tmp_path, "EASGD_RANK": 0, "EASGD_WORKERS": 1}.items():
        monkeypatch.setenv(name, str(value))


def net(width=16):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 1))


def train(model, optimizer, device, steps=20):
    for step in range(steps):
        x = torch.randn(32, 8, generator=torch.Generator().manual_seed(step)).to(device)
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("method", "options"),
    [
        (easgd.EASGD(period=2, moving_rate=0.3), {}),
        (easgd.EAMSGD(period=2, moving_rate=0.3, momentum=0.9), {"momentum": 0.9, "nesterov": True}),
        (easgd.Downpour(period=2), {}),
    ],
)
@pytest.mark.parametrize("stream", ["default", "own"])
def test_a_short_run_as_on_the_cpu(run, tmp_path, monkeypatch, method, options, stream):
    """The same center and the same worker but for rounding, also where the script computes on a stream of its own."""
    found = []
    for name in ("cpu", kind()):
        monkeypatch.setenv("EASGD_RUN", str(tmp_path / name))
        (tmp_path / name).mkdir()
        model = net().to(name)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **options)
        worker = easgd.attach(model, optimizer, method, overlap=True)
        if name != "cpu" and stream == "own":
            torch.accelerator.synchronize()
            with torch.Stream(name):
                train(model, optimizer, name)
            torch.accelerator.synchronize()
        else:
            train(model, optimizer, name)
        found.append((worker.replica.read().clone(), worker.client.snapshot()["x"]))
        worker.close()
    for cpu, device in zip(*found, strict=True):
        torch.testing.assert_close(device, cpu, rtol=1e-4, atol=1e-5)


def test_messages_are_pinned_and_wait_for_no_step():
    """x as it was when it was read, though the steps after it are given before the copy can be done."""
    p = nn.Parameter(torch.zeros(4_000_000, device=kind()))
    replica = Replica([p], torch.optim.SGD([p], lr=0.1))
    work = torch.randn(2000, 2000, device=kind())
    for value in range(20):
        with torch.no_grad():
            p.fill_(value)
        with replica.unawaited():
            message = replica.read()
        with torch.no_grad():
            p.fill_(-1.0)
        replica.wait()
        assert message.eq(value).all()
        message.fill_(0.5)  # the center's answer
        replica.send(message)
        work = work @ work / 2000
        replica.add_(message)
        assert p.eq(-0.5).all()
    backend = streams.backend_for([p.device])
    assert backend.asynchronous == (kind() != "mps")
    if backend.asynchronous:
        assert message.is_pinned()


def test_a_copy_runs_beside_a_computation():
    """An event after the copy is passed while the compute stream is still busy: it was not queued behind."""
    if kind() == "mps":
        pytest.skip("Metal has one stream")
    p = nn.Parameter(torch.zeros(1_000_000, device=kind()))
    replica = Replica([p], torch.optim.SGD([p], lr=0.1))
    replica.read()
    a = torch.randn(4096, 4096, device=kind())
    with replica.unawaited():
        replica.read()
    for _ in range(200):
        a = a @ a / 4096
    busy = torch.accelerator.current_stream().record_event()
    replica.wait()
    assert not busy.query(), "the copy ended after the computation that was given after it"


@pytest.mark.skipif(DEVICES < 2, reason="this machine has one accelerator")
def test_a_model_on_two_devices(run):
    class Split(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, _, self.last = net()
            self.first.to(f"{kind()}:0")
            self.last.to(f"{kind()}:1")

        def forward(self, x):
            return self.last(self.first(x).tanh().to(f"{kind()}:1"))

    model = Split()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=1, moving_rate=0.3), overlap=True)
    alone = copy.deepcopy(model).cpu()
    train(model, optimizer, f"{kind()}:0", steps=1)
    worker.exchange.settle()
    plain = nn.Sequential(alone.first, nn.Tanh(), alone.last)
    train(plain, torch.optim.SGD(plain.parameters(), lr=0.1), "cpu", steps=1)
    want = torch.cat([p.detach().flatten() for p in plain.parameters()])
    torch.testing.assert_close(worker.replica.read(), want, rtol=1e-4, atol=1e-5)  # x = x̃ at the first exchange: d = 0
    worker.close()


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_the_scaler_skips_is_no_step(run, fused):
    if kind() == "mps" and fused:
        pytest.skip("no fused SGD")
    model = net().to(kind())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=fused)
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=1, moving_rate=0.3))
    scaler = torch.amp.GradScaler(kind(), init_scale=1024.0)
    for bad in (False, True, False):
        with torch.autocast(kind(), dtype=torch.float16):
            loss = model(torch.randn(32, 8, device=kind())).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss * float("inf") if bad else loss).backward()
        scaler.step(optimizer)
        scaler.update()
    assert worker.clock == 2
    assert worker.replica.read().isfinite().all()
    worker.close()
