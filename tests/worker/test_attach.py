"""`attach` on one worker: equal to the simulator; alone, as if it were not there."""

import copy

import pytest
import torch

import easgd
from attaching import METHODS, STEPS, batch, decaying, loss_of, net, train
from easgd.learning_rate import first_drop


@pytest.mark.parametrize("name", METHODS)
def test_one_worker_equals_the_simulator(name, run_folder):
    method = METHODS[name]
    gradient = easgd.ModelGradient(net(), loss_of, batch)
    sim = easgd.Simulation(
        gradient, gradient.x0, method, lr=0.1, workers=1, weight_decay=1e-3, scheduler=decaying,
        schedule="sync" if getattr(method, "sync", False) else "round-robin",
    )  # fmt: skip
    sim.run(STEPS)
    model = net()
    optimizer = method.optimizer(list(model.parameters()), 0.1, 1e-3)
    worker = easgd.attach(model, optimizer, method)
    train(model, optimizer, scheduler=decaying(optimizer))
    ours = torch.cat([v.flatten() for v in worker.center().values()])
    torch.testing.assert_close(ours, sim.center.measured, rtol=0, atol=2e-6)
    local = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.testing.assert_close(local, sim.workers[0].state.replica.read(), rtol=0, atol=2e-6)
    assert worker.clock == STEPS
    worker.close()


@pytest.mark.parametrize("name", ["easgd", "eamsgd", "averaged", "easgd rho"])
def test_overlapped_and_blocking_are_equal_bit_for_bit(name, tmp_path, monkeypatch):
    results = []
    for overlap in (True, False):
        folder = tmp_path / str(overlap)
        folder.mkdir()
        for key, value in {"EASGD_RUN": folder, "EASGD_RANK": 0, "EASGD_WORKERS": 1}.items():
            monkeypatch.setenv(key, str(value))
        model = net()
        optimizer = METHODS[name].optimizer(list(model.parameters()), 0.1)
        worker = easgd.attach(model, optimizer, METHODS[name], overlap=overlap)
        train(model, optimizer)
        results.append((worker.center(), model.state_dict()))
        worker.close()
    for key in results[0][0]:
        assert torch.equal(results[0][0][key], results[1][0][key])
        assert torch.equal(results[0][1][key], results[1][1][key])


def test_alone_the_script_trains_as_before():
    plain, attached = net(), net()
    for model in (plain, attached):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if model is attached:
            worker = easgd.attach(model, optimizer, easgd.EASGD(period=2))
        train(model, optimizer)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), attached.parameters(), strict=True))
    assert (worker.rank, worker.workers, worker.clock) == (0, 1, STEPS)
    assert all(torch.equal(v, worker.center()[k]) for k, v in attached.state_dict().items())


def test_alone_settings_for_more_workers_are_no_error(monkeypatch):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    easgd.attach(model, optimizer, easgd.EASGD(beta=1.5))
    monkeypatch.setenv("EASGD_RUN", "unused")
    monkeypatch.setenv("EASGD_RANK", "0")
    monkeypatch.setenv("EASGD_WORKERS", "1")
    with pytest.raises(easgd.SettingError, match="write beta below 1"):
        easgd.attach(model, optimizer, easgd.EASGD(beta=1.5))


def test_alone_a_changed_rate_leaves_torchs_momentum_as_it_is():
    results = []
    for attached in (False, True):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
        if attached:
            easgd.attach(model, optimizer, easgd.EAMSGD(momentum=0.9))
        train(model, optimizer, 8, decaying(optimizer))
        results.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_alone_asgd_still_has_its_average():
    model, seen = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worker = easgd.attach(model, optimizer, easgd.ASGD())
    for step in range(6):
        seen.append(copy.deepcopy(model.state_dict()))
        train(model, optimizer, 1, start=step)
    for name, z in worker.center().items():
        torch.testing.assert_close(z, torch.stack([s[name] for s in seen]).mean(0), rtol=0, atol=1e-6)


def test_state_goes_on_where_it_was(tmp_path, monkeypatch):
    """Stop after 8 of 20 steps, in the middle of a period, and go on: the same as never stopped."""

    def start(folder):
        (tmp_path / folder).mkdir()
        for key, value in {"EASGD_RUN": tmp_path / folder, "EASGD_RANK": 0, "EASGD_WORKERS": 1}.items():
            monkeypatch.setenv(key, str(value))
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.8, nesterov=True)
        method = easgd.EAMSGD(period=3, beta=0.6, momentum=0.8)
        return model, optimizer, easgd.attach(model, optimizer, method)

    whole, optimizer, _ = start("a")
    train(whole, optimizer, 20)
    first, optimizer, worker = start("b")
    train(first, optimizer, 8)
    saved = copy.deepcopy((first.state_dict(), optimizer.state_dict(), worker.state_dict()))
    slots = worker.client.snapshot()
    second, optimizer, worker = start("c")
    second.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    worker.load_state_dict(saved[2])
    worker.client.segment.slots["x"].copy_(slots["x"])
    train(second, optimizer, 12, start=8)
    assert worker.clock == 20
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize("name", ["msgd", "asgd", "mvasgd", "averaged msgd"])
def test_alone_a_sequential_method_has_the_simulators_center(name):
    """MSGD's center is x, behind the look-ahead point that torch stores; so is what its average takes."""
    method = easgd.averaged(easgd.MSGD(momentum=0.8)) if name == "averaged msgd" else METHODS[name]
    gradient = easgd.ModelGradient(net(), loss_of, batch)
    sim = easgd.Simulation(gradient, gradient.x0, method, lr=0.1, workers=1, scheduler=decaying)
    sim.run(STEPS)
    model = net()
    optimizer = method.optimizer(list(model.parameters()), 0.1)
    worker = easgd.attach(model, optimizer, method)
    train(model, optimizer, scheduler=decaying(optimizer))
    ours = torch.cat([v.flatten() for v in worker.center().values()])
    torch.testing.assert_close(ours, sim.center.measured, rtol=0, atol=2e-6)


@pytest.mark.parametrize("alone", [True, False])
def test_asgd_averages_from_the_first_drop_of_the_rate_on(alone, tmp_path, monkeypatch):
    """On ImageNet ASGD begins its average when η drops first: in a script as on the virtual clock."""
    if not alone:
        for key, value in {"EASGD_RUN": tmp_path, "EASGD_RANK": 0, "EASGD_WORKERS": 1}.items():
            monkeypatch.setenv(key, str(value))

    def stagnating(optimizer):
        return easgd.Stagnation(optimizer, window=4, improvement=0.5)  # no window is that much better: it drops

    gradient = easgd.ModelGradient(net(), loss_of, batch)
    sim = easgd.Simulation(gradient, gradient.x0, easgd.ASGD(), lr=0.1, workers=1, scheduler=stagnating)
    sim.run(STEPS)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worker = easgd.attach(model, optimizer, easgd.ASGD())
    scheduler = stagnating(optimizer)
    for step in range(STEPS):
        value = loss_of(model, batch(0, step))
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        if first_drop(scheduler, float(value.detach())):
            worker.begin_average()
        scheduler.step()
    assert scheduler.drops > 0
    ours = torch.cat([v.flatten() for v in worker.center().values()])
    torch.testing.assert_close(ours, sim.center.measured, rtol=0, atol=2e-6)
    worker.close()


def test_momentum_is_the_optimizers_unless_the_method_says_otherwise(run_folder):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.7, nesterov=True)
    worker = easgd.attach(model, optimizer, easgd.EAMSGD(period=2))
    assert worker.method.momentum == 0.7
    assert easgd.EAMSGD(period=2).momentum == 0.99, "and 0.99, the paper's, where the method makes the optimizer"
    worker.close()


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        (easgd.EAMSGD(momentum=0.9), {"momentum": 0.7, "nesterov": True}),
        (easgd.EAMSGD(), {"momentum": 0.7}),
        (easgd.EAMSGD(), {}),
    ],
)
def test_a_momentum_that_contradicts_the_method_is_refused(method, settings):
    model = net()
    with pytest.raises(easgd.SettingError, match="momentum"):
        easgd.attach(model, torch.optim.SGD(model.parameters(), lr=0.1, **settings), method)
