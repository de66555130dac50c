"""The real `schedulefree` package, attached: the center is an average of its x."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import easgd

schedulefree = pytest.importorskip("schedulefree", reason="needs the package schedulefree")

X = torch.randn(32, 4, generator=torch.Generator().manual_seed(1))
MAKERS = {
    "sgd": lambda params: schedulefree.SGDScheduleFree(params, lr=0.5, warmup_steps=2),
    "adamw": lambda params: schedulefree.AdamWScheduleFree(params, lr=0.05),
    "radam": lambda params: schedulefree.RAdamScheduleFree(params, lr=0.05),
    "plain loops": lambda params: schedulefree.AdamWScheduleFree(params, lr=0.05, foreach=False),
    "closure": lambda params: schedulefree.SGDScheduleFreeClosure(params, lr=0.5),
}


def average(model, optimizer, make):
    """Return x as the package itself computes it."""
    twin = copy.deepcopy(model)
    other = make(twin.parameters())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    if hasattr(other, "eval"):
        other.eval()
    return [p.detach() for p in twin.parameters()]


def step(model, optimizer):
    def closure():
        optimizer.zero_grad()
        loss = (model(X) - X.sum(1, keepdim=True)).square().mean()
        loss.backward()
        return loss

    if hasattr(optimizer, "train"):
        optimizer.train()
        closure()
        optimizer.step()
    else:
        optimizer.step(closure)


@pytest.mark.parametrize("name", MAKERS)
def test_the_spring_is_tied_to_the_average(name, tmp_path, monkeypatch):
    for key, value in {"EASGD_RUN": tmp_path, "EASGD_RANK": 0, "EASGD_WORKERS": 1}.items():
        monkeypatch.setenv(key, str(value))
    torch.manual_seed(0)
    model, make = nn.Linear(4, 1), MAKERS[name]
    optimizer = make(model.parameters())
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=1, moving_rate=0.5))
    for _ in range(6):
        before = list(worker.center().values())
        d = [(x - c) / 2 for x, c in zip(average(model, optimizer, make), before, strict=True)]
        alone = copy.deepcopy(model)
        lone = make(alone.parameters())
        lone.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        step(alone, lone)
        worker.begin()  # a closure runs the forward within the step, and would begin the next one at this one's end
        step(model, optimizer)
        for c, old, di in zip(worker.center().values(), before, d, strict=True):
            torch.testing.assert_close(c, old + di, rtol=0, atol=1e-6)
        for x, free, di in zip(average(model, optimizer, make), average(alone, lone, make), d, strict=True):
            torch.testing.assert_close(x, free - di, rtol=0, atol=1e-5)
    assert max(float(di.abs().max()) for di in d) > 0
    worker.close()


def test_the_packages_wrapper_is_refused():
    model = nn.Linear(4, 1)
    wrapped = schedulefree.ScheduleFreeWrapper(torch.optim.SGD(model.parameters(), lr=0.1), momentum=0.9)
    with pytest.raises(easgd.SettingError, match=r"optimizer = ScheduleFreeWrapper: .*AdamWScheduleFree"):
        easgd.attach(model, wrapped, easgd.EASGD())
