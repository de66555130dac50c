"""What `attach` refuses: numbers that are not finite, workers that do not fit, settings that cannot be."""

import pytest
import torch
from torch import nn

import easgd
from attaching import METHODS, net, train
from easgd.records import Event, read_records


@pytest.mark.parametrize("name", ["admm", "sgd", "easgd", "downpour"])
def test_every_method_honours_the_policy_raise(run_folder, name):
    model = net()
    optimizer = METHODS[name].optimizer(list(model.parameters()), 0.1)
    easgd.attach(model, optimizer, METHODS[name], nonfinite="raise", overlap=False)
    train(model, optimizer, 2)
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    with pytest.raises(easgd.NonFiniteError, match="worker 0, step"):
        train(model, optimizer, 4)


def test_parameters_added_later_are_not_silently_left_out(run_folder):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    easgd.attach(model, optimizer, easgd.EASGD(period=2))
    train(model, optimizer, 1)
    optimizer.add_param_group({"params": torch.nn.Linear(2, 1).parameters()})
    with pytest.raises(easgd.SettingError, match=r"call easgd\.attach after add_param_group"):
        train(model, optimizer, 1)


def _attached_once():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=2))
    with pytest.raises(easgd.SettingError, match="attached already"):
        easgd.attach(model, optimizer, easgd.EASGD(period=2))
    worker.close()
    easgd.attach(model, optimizer, easgd.EASGD(period=2)).close()


def test_a_worker_is_attached_once(run_folder):
    _attached_once()


def test_a_script_alone_is_told_too_that_it_attaches_twice():
    """Else it would fail only when it is launched."""
    _attached_once()


@pytest.mark.parametrize("idle", [True, False], ids=["hidden", "in place"])
@pytest.mark.parametrize(("policy", "healed"), [("skip", False), ("reset", True)])
@pytest.mark.parametrize("schedule", ["async", "sync", "round-robin"])
def test_a_worker_that_diverged_does_not_reach_the_center(run_folder, policy, healed, idle, schedule, monkeypatch):
    """Case 31: finite, and far away."""
    monkeypatch.setattr("easgd.worker.exchange.idle_cores", lambda workers: idle)
    monkeypatch.setenv("EASGD_SCHEDULE", schedule)
    monkeypatch.setattr("easgd.worker.open_workers.APART", apart := [])
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=1, beta=0.5), nonfinite=policy)
    train(model, optimizer, 3)
    center = worker.center()
    with torch.no_grad():
        model[2].weight[-1] = 1e9
    train(model, optimizer, 1)
    now = worker.center()
    assert all(torch.equal(now[key], center[key]) for key in center), "nothing of a refused message stays"
    assert all(p.abs().max() < 1e3 for p in model.parameters()) == healed
    worker.close()
    assert apart == ["worker 0"]
    events = [r for r in read_records(run_folder.parent / "out") if isinstance(r, Event)]
    assert any(e.event == "refused" and "distance 2.828e+09, bound " in e.detail for e in events)
    assert [e.detail for e in events if e.event == "apart"] == ["its last 1 exchanges were refused"]


def test_the_guard_is_an_option(run_folder):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(easgd.SettingError, match=r"guard = 0\.5: it is a factor above 1"):
        easgd.attach(model, optimizer, easgd.EASGD(period=1), guard=0.5)
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=1, beta=0.5), guard=0, overlap=False)
    train(model, optimizer, 1)
    with torch.no_grad():
        model[2].weight[-1] = 1e9
    train(model, optimizer, 1)
    assert worker.center()["2.weight"].abs().max() > 1e8


@pytest.mark.parametrize("idle", [True, False], ids=["hidden", "in place"])
@pytest.mark.parametrize(("policy", "healed"), [("skip", False), ("reset", True)])
def test_a_non_finite_worker_does_not_reach_the_center(run_folder, policy, healed, idle, monkeypatch):
    monkeypatch.setattr("easgd.worker.exchange.idle_cores", lambda workers: idle)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=1, beta=0.5), nonfinite=policy)
    train(model, optimizer, 3)
    center = worker.center()
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    train(model, optimizer, 4)
    now = worker.center()
    assert all(v.isfinite().all() for v in now.values())
    if not healed:
        assert all(torch.equal(now[key], center[key]) for key in center), "nothing of a refused message stays"
    assert all(p.isfinite().all() for p in model.parameters()) == healed
    worker.close()
    records = (run_folder.parent / "out" / "records-0-0.jsonl").read_text()
    assert records.count('"refused"') == (1 if healed else 4)


@pytest.mark.parametrize("overlap", [False, "auto"])
def test_the_policy_raise(run_folder, overlap, monkeypatch):
    monkeypatch.setattr("easgd.worker.exchange.idle_cores", lambda workers: False)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    easgd.attach(model, optimizer, easgd.EASGD(period=1, beta=0.5), nonfinite="raise", overlap=overlap)
    with torch.no_grad():
        model[0].weight[0, 0] = float("inf")
    with pytest.raises(easgd.NonFiniteError, match="worker 0, step 0"):
        train(model, optimizer, 1)


def test_a_worker_that_does_not_fit_is_refused_with_the_difference(run_folder, monkeypatch):
    def attach(model, method=None):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return easgd.attach(model, optimizer, method or easgd.EASGD(period=2), name="one")

    attach(net()).close()  # the center stays in the run
    monkeypatch.setenv("EASGD_RANK", "1")
    wide = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))
    with pytest.raises(easgd.SettingError, match=r"0.weight has shape \(9, 6\) here, \(8, 6\) in the run"):
        attach(wide)
    deep = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3), nn.Linear(3, 3))
    with pytest.raises(easgd.SettingError, match=r"3\.weight is not in the run"):
        attach(deep)
    with pytest.raises(easgd.SettingError, match=r"0\.weight has dtype torch\.float64 here, torch\.float32 in the run"):
        attach(net().double())
    with pytest.raises(easgd.SettingError, match="the method is Downpour"):
        attach(net(), easgd.Downpour(period=2))


def test_bad_settings_say_what_to_write():
    model = net()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(easgd.SettingError, match=r"write SGD\(…, momentum=0.99, nesterov=True\)"):
        easgd.attach(model, plain, easgd.EAMSGD())
    with pytest.raises(easgd.SettingError, match=r"unknown policy buffers 'averge'.*did you mean 'average'"):
        easgd.attach(model, plain, easgd.EASGD(), buffers="averge")
    frozen = net().requires_grad_(False)
    with pytest.raises(easgd.SettingError, match="no trainable parameter"):
        easgd.attach(frozen, torch.optim.SGD(frozen.parameters(), lr=0.1), easgd.EASGD())
    with pytest.raises(easgd.SettingError, match=r"write easgd\.EASGD"):
        easgd.attach(model, plain, "easgd")
    for name, value in {"deadline": -1, "seed": 0.5, "curvature": -3.0, "patience": True, "saved": 5}.items():
        with pytest.raises(easgd.SettingError, match=f"{name} = "):
            easgd.attach(model, plain, easgd.EASGD(), **{name: value})


def test_a_change_of_alpha_is_recorded(run_folder):
    """Case 11: β = 0.5 is shared by those who live; another worker comes, and goes."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=1, beta=0.5), overlap=False)
    train(model, optimizer, 1)
    worker.client.control.enter(1, 0)
    train(model, optimizer, 2)
    worker.client.control.leave(1)
    train(model, optimizer, 2)
    worker.close()
    events = [
        r.detail for r in read_records(run_folder.parent / "out") if isinstance(r, Event) and r.event == "workers"
    ]
    assert events == ["2 alive, scale 0.25", "1 alive, scale 0.5"]
