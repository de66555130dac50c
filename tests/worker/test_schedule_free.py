"""Schedule-free optimizers: the elastic variable is x, the average, wherever the parameters are."""

import copy

import pytest
import torch
from torch import nn

import easgd
from attaching import batch, loss_of, net
from easgd.worker.held_center import HeldCenter

BETA, LR = 0.9, 0.5


class ScheduleFree(torch.optim.Optimizer):
    """Schedule-free SGD from the paper's equations: x is computed anew at every step, y is kept in the parameters."""

    def __init__(self, params, lr=LR):
        super().__init__(params, {"lr": lr, "momentum": BETA, "train_mode": False, "weight_sum": 0.0})

    def _to(self, mode):
        for group in self.param_groups:
            if group["train_mode"] != mode:
                group["train_mode"] = mode
                for p in group["params"]:
                    if "z" in self.state[p]:
                        z = self.state[p]["z"]
                        p.data = (1 - BETA) * z + BETA * p.data if mode else (p.data - (1 - BETA) * z) / BETA

    def train(self):
        self._to(True)

    def eval(self):
        self._to(False)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            assert group["train_mode"]
            group["weight_sum"] += 1.0
            c = 1 / group["weight_sum"]
            for p in group["params"]:
                z = self.state[p].setdefault("z", p.detach().clone())
                x = (p - (1 - BETA) * z) / BETA
                z -= group["lr"] * p.grad
                x = (1 - c) * x + c * z
                p.copy_((1 - BETA) * z + BETA * x)


def x_of(model, optimizer):
    """The average x of every parameter, by asking a copy of the optimizer."""
    twin = copy.deepcopy(model)
    other = type(optimizer)(twin.parameters())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    other.eval()
    return {name: p.detach() for name, p in twin.named_parameters()}


def step(model, optimizer, number):
    loss_of(model, batch(0, number)).backward()
    optimizer.step()
    optimizer.zero_grad()


def test_an_exchange_shifts_all_three_points(run_folder):
    """By hand, τ = 1 and α = 1/2: x̃ moves by d = (x − x̃)/2; x, y and z are each −d from where the step took them."""
    model = net()
    optimizer = ScheduleFree(model.parameters())
    optimizer.train()
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=1, moving_rate=0.5))
    for number in range(5):
        alone, before = copy.deepcopy(model), worker.center()
        lone = ScheduleFree(alone.parameters())
        lone.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        d = {name: (x - before[name]) / 2 for name, x in x_of(model, optimizer).items()}
        step(alone, lone, number)
        step(model, optimizer, number)
        expected = x_of(alone, lone)
        for (name, y), y_alone in zip(model.named_parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(worker.center()[name], before[name] + d[name], rtol=0, atol=1e-6)
            torch.testing.assert_close(y, y_alone - d[name], rtol=0, atol=1e-6)
            torch.testing.assert_close(optimizer.state[y]["z"], lone.state[y_alone]["z"] - d[name], rtol=0, atol=1e-6)
            torch.testing.assert_close(x_of(model, optimizer)[name], expected[name] - d[name], rtol=0, atol=1e-6)
    assert any(bool(value.any()) for value in d.values())
    worker.close()


@pytest.mark.parametrize(
    "method", [easgd.EASGD(period=2), easgd.Downpour(period=2), easgd.ADMM(0.5, period=2)], ids=repr
)
def test_modes_between_the_steps_change_nothing(method, tmp_path, monkeypatch):
    """A script that goes to eval mode and back, as for a validation, has the same center."""
    centers = []
    for flips in (False, True):
        (tmp_path / str(flips)).mkdir()
        for key, value in {"EASGD_RUN": tmp_path / str(flips), "EASGD_RANK": 0, "EASGD_WORKERS": 1}.items():
            monkeypatch.setenv(key, str(value))
        model = net()
        optimizer = ScheduleFree(model.parameters())
        worker = easgd.attach(model, optimizer, method)
        for number in range(7):
            optimizer.train()
            step(model, optimizer, number)
            if flips:
                optimizer.eval()
        centers.append(worker.center())
        worker.close()
    for name, value in centers[0].items():
        torch.testing.assert_close(centers[1][name], value, rtol=0, atol=1e-5)


def test_alone_the_center_is_the_average():
    model = net()
    optimizer = ScheduleFree(model.parameters())
    optimizer.train()
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=2))
    for number in range(4):
        step(model, optimizer, number)
    for name, x in x_of(model, optimizer).items():
        torch.testing.assert_close(worker.center()[name], x, rtol=0, atol=1e-6)
        assert not torch.equal(model.get_parameter(name), x)


def test_an_evaluation_of_the_center_leaves_the_three_points_alone(run_folder):
    """Frameworks call `optimizer.eval()` inside an evaluation: the center must stay as it is, and y come back."""
    model = net()
    optimizer = ScheduleFree(model.parameters())
    optimizer.train()
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=2))
    for number in range(3):
        step(model, optimizer, number)
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()["param_groups"]))
    with worker.at_center():
        optimizer.eval()
        assert all(torch.equal(value, worker.center()[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(value, before[0][name]) for name, value in model.state_dict().items())
    assert optimizer.state_dict()["param_groups"] == before[1]
    worker.close()


def test_a_reset_begins_the_average_anew(run_folder):
    model = net()
    optimizer = ScheduleFree(model.parameters())
    optimizer.train()
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=1), nonfinite="reset")
    step(model, optimizer, 0)
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    step(model, optimizer, 1)
    assert worker.replica.read().isfinite().all()
    assert optimizer.param_groups[0]["weight_sum"] == 0.0
    assert not optimizer.state
    worker.close()


def test_a_wrapper_that_keeps_the_average_is_refused():
    class Wrapper:
        def __init__(self, base):
            self.base = base

        def train(self):
            pass

    model = nn.Linear(2, 1)
    with pytest.raises(easgd.SettingError, match=r"optimizer = Wrapper: .*AdamWScheduleFree"):
        easgd.attach(model, Wrapper(torch.optim.SGD(model.parameters(), lr=0.1)), easgd.EASGD())


def test_what_was_held_comes_back_bit_for_bit():
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    own = copy.deepcopy(model.state_dict())
    held = HeldCenter(model, optimizer, {name: value + 1 for name, value in own.items()})
    assert not torch.equal(model.weight, own["weight"])
    held.release()
    assert torch.equal(model.weight, own["weight"])
