"""`attach` on one worker: equal to the simulator, whatever the model is made of; alone, as if it were not there."""

import copy

import pytest
import torch
from torch import nn

import easgd
from easgd.flat import pack

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(1))
Y = torch.randint(0, 3, (64,), generator=torch.Generator().manual_seed(2))
STEPS = 23


@pytest.fixture
def run_folder(tmp_path, monkeypatch):
    """The environment that a launcher gives its only worker."""
    folder = tmp_path / "run"
    folder.mkdir()
    for name, value in {"EASGD_RUN": folder, "RANK": 0, "WORLD_SIZE": 1, "EASGD_OUT": tmp_path / "out"}.items():
        monkeypatch.setenv(name, str(value))
    return folder


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def batch(worker, step):
    rows = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(1000 * worker + step))
    return X[rows], Y[rows]


def loss_of(model, xy):
    return nn.functional.cross_entropy(model(xy[0]), xy[1])


def train(model, optimizer, steps=STEPS, scheduler=None, start=0):
    for step in range(start, start + steps):
        loss_of(model, batch(0, step)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if scheduler is not None:
            scheduler.step()


METHODS = {
    "easgd": easgd.EASGD(period=3, beta=0.6),
    "easgd τ=1": easgd.EASGD(period=1, moving_rate=0.3),
    "easgd rho": easgd.EASGD(period=2, rho=2.0),
    "easgd sync": easgd.EASGD(period=2, beta=0.6, sync=True),
    "eamsgd": easgd.EAMSGD(period=2, beta=0.6, momentum=0.8),
    "downpour": easgd.Downpour(period=3),
    "mdownpour": easgd.MDownpour(momentum=0.5),
    "adownpour": easgd.ADownpour(period=2),
    "mvadownpour": easgd.MVADownpour(period=2, rate=0.2),
    "averaged": easgd.averaged(easgd.EASGD(period=2, beta=0.6)),
    "admm": easgd.ADMM(0.5, period=2),
    "sgd": easgd.SGD(),
    "msgd": easgd.MSGD(momentum=0.8),
    "asgd": easgd.ASGD(),
    "mvasgd": easgd.MVASGD(rate=0.3),
}


def decaying(optimizer):
    return torch.optim.lr_scheduler.LambdaLR(optimizer, easgd.decay(0.2))


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
    torch.testing.assert_close(local, sim.nodes[0].worker.replica.read(), rtol=0, atol=2e-6)
    assert worker.clock == STEPS
    worker.close()


@pytest.mark.parametrize("name", ["easgd", "eamsgd", "averaged", "easgd rho"])
def test_overlapped_and_blocking_are_equal_bit_for_bit(name, tmp_path, monkeypatch):
    results = []
    for overlap in (True, False):
        folder = tmp_path / str(overlap)
        folder.mkdir()
        for key, value in {"EASGD_RUN": folder, "RANK": 0, "WORLD_SIZE": 1}.items():
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
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
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
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    easgd.attach(model, optimizer, easgd.EASGD(period=2))
    train(model, optimizer, 1)
    optimizer.add_param_group({"params": model[2].parameters()})
    with pytest.raises(easgd.SettingError, match="attach after adding them"):
        train(model, optimizer, 1)


def test_a_worker_is_attached_once(run_folder):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worker = easgd.attach(model, optimizer, easgd.EASGD(period=2))
    with pytest.raises(easgd.SettingError, match="attached already"):
        easgd.attach(model, optimizer, easgd.EASGD(period=2))
    worker.close()
    easgd.attach(model, optimizer, easgd.EASGD(period=2)).close()


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
    assert worker.home.segment.slots["x"].dtype == torch.float32
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
        versions.append(worker.home.version)
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
    assert worker.home.version == (22 if idle else 21)


def test_a_compiled_model_is_the_same_model(run_folder):
    model = net()
    compiled = torch.compile(model, backend="eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    worker = easgd.attach(compiled, optimizer, easgd.EASGD(period=1, beta=0.5))
    train(compiled, optimizer, 3)
    assert worker.home.version == 3
    assert set(worker.center()) == set(model.state_dict())


def test_state_goes_on_where_it_was(tmp_path, monkeypatch):
    """Stop after 8 of 20 steps, in the middle of a period, and go on: the same as never stopped."""

    def start(folder):
        (tmp_path / folder).mkdir()
        for key, value in {"EASGD_RUN": tmp_path / folder, "RANK": 0, "WORLD_SIZE": 1}.items():
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
    slots = worker.home.snapshot()
    second, optimizer, worker = start("c")
    second.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    worker.load_state_dict(saved[2])
    worker.home.segment.slots["x"].copy_(slots["x"])
    train(second, optimizer, 12, start=8)
    assert worker.clock == 20
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), second.parameters(), strict=True))


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
    if not healed:  # taken back to rounding: nothing of a refused message stays
        for key in center:
            torch.testing.assert_close(now[key], center[key], rtol=0, atol=1e-6)
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


def test_a_worker_that_does_not_fit_is_refused_with_the_difference(run_folder):
    def attach(model, method=None):
        return easgd.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), method or easgd.EASGD(period=2))

    attach(net())
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
