"""Local SGD and DiLoCo, in rounds and asynchronous: papers' loops, torch's optimizers, each other, numbers by hand."""

import functools

import numpy as np
import pytest
import torch

import descendants
import easgd
from easgd.engines.simulate import Simulation
from easgd.errors import SettingError

A = np.array([[1.0, 0.3, 0.0], [0.3, 0.5, -0.2], [0.0, -0.2, 2.0]])
X0 = np.array([1.0, -2.0, 0.5])
STEPS, LR = 40, 0.1


def g(x, worker, step):
    return A @ x - np.random.default_rng([7, worker, step]).normal(size=3)


def torch_g(x, worker, step):
    return torch.from_numpy(g(x.numpy(), worker, step))


def run(method, p=3, schedule="sync", steps=STEPS, **settings):
    return easgd.simulate(
        torch_g, torch.from_numpy(X0), method, lr=LR, workers=p, steps=steps, schedule=schedule, **settings
    )


def agree(ours, theirs, within=1e-10):
    np.testing.assert_allclose(ours.center.numpy(), theirs[0], rtol=0, atol=within)
    np.testing.assert_allclose(ours.local.numpy(), theirs[1], rtol=0, atol=within)


def same(a, b, within=1e-12):
    agree(a, (b.center.numpy(), b.local.numpy()), within)


# the papers' loops ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1, 3])
@pytest.mark.parametrize(("tau", "first"), [(1, 0), (4, 0), (4, 7), (10, 3)])
def test_local_sgd_and_its_first_phase(p, tau, first):
    def due(t):
        return 0 < t <= first or (t > first and (t - first) % tau == 0)

    theirs = descendants.rounds(g, X0, p, LR, STEPS, due, descendants.mean)
    agree(run(easgd.LocalSGD(period=tau, first_phase=first), p), theirs)


OUTER = {
    "sgd": ({"outer": "sgd"}, functools.partial(torch.optim.SGD, lr=1.0)),
    "slowmo": (
        {"outer": "sgd", "outer_lr": 0.8, "outer_momentum": 0.6},
        functools.partial(torch.optim.SGD, lr=0.8, momentum=0.6),
    ),
    "nesterov": ({}, functools.partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)),
    "adam": ({"outer": "adam"}, functools.partial(torch.optim.Adam, lr=0.3, betas=(0.9, 0.95), eps=0.1)),
}


@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize(("p", "tau"), [(1, 5), (3, 3)])
def test_diloco_with_torchs_outer_optimizers(outer, p, tau):
    settings, make = OUTER[outer]
    step = descendants.TorchOuter(X0, make)
    theirs = descendants.rounds(g, X0, p, LR, STEPS, lambda t: t > 0 and t % tau == 0, step)
    agree(run(easgd.DiLoCo(period=tau, **settings), p), theirs)
    # The optimizer itself says the same as the settings do.
    assert easgd.DiLoCo(period=tau, outer=make) == easgd.DiLoCo(period=tau, **settings)


@pytest.mark.parametrize(("n", "power"), [(1, 0.0), (2, 0.0), (3, 0.5), (4, 1.0)])
@pytest.mark.parametrize(("p", "tau"), [(1, 2), (3, 2), (2, 5)])
def test_asynchronous_diloco_with_delayed_nesterov(p, tau, n, power):
    theirs = descendants.delayed_nesterov(g, X0, p, tau, LR, STEPS, 0.5, 0.8, n, power)
    method = easgd.AsyncDiLoCo(period=tau, outer_lr=0.5, outer_momentum=0.8, every=n, staleness=power)
    agree(run(method, p, "round-robin"), theirs)


# each other ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [0, 6])
def test_diloco_with_outer_sgd_of_rate_one_is_local_sgd(first):
    outer = easgd.DiLoCo(period=4, outer="sgd", outer_lr=1.0, first_phase=first)
    same(run(outer), run(easgd.LocalSGD(period=4, first_phase=first)))


def test_slowmo_without_momentum_is_local_sgd_and_block_momentum_is_slowmo():
    """SlowMo: u ← βu + (x̃ − mean)/γ; x̃ ← x̃ − αγu. Block momentum: Δ ← ηΔ + ζ(mean − x̃); x̃ ← x̃ + Δ."""
    gamma, alpha, beta = LR, 0.7, 0.5
    state = {"u": 0 * X0, "delta": 0 * X0}

    def slowmo(center, average):
        state["u"] = beta * state["u"] + (center - average) / gamma
        return center - alpha * gamma * state["u"]

    def block(center, average):
        state["delta"] = beta * state["delta"] + alpha * (average - center)
        return center + state["delta"]

    ours = run(easgd.DiLoCo(period=4, outer="sgd", outer_lr=alpha, outer_momentum=beta))
    for outer in (slowmo, block):
        agree(ours, descendants.rounds(g, X0, 3, LR, STEPS, lambda t: t > 0 and t % 4 == 0, outer))


def test_block_momentum_of_nesterov_is_diloco():
    """NBM: Δ ← ηΔ + ζ(mean − y); w ← w + Δ; the workers go on from y = w + ηΔ."""
    state = {"delta": 0 * X0, "w": X0.copy()}

    def block(y, average):
        state["delta"] = 0.9 * state["delta"] + 0.7 * (average - y)
        state["w"] = state["w"] + state["delta"]
        return state["w"] + 0.9 * state["delta"]

    agree(run(easgd.DiLoCo(period=4)), descendants.rounds(g, X0, 3, LR, STEPS, lambda t: t > 0 and t % 4 == 0, block))


def test_delayed_nesterov_with_one_message_is_nesterov():
    """One worker: its messages are the rounds."""
    same(run(easgd.AsyncDiLoCo(period=4, every=1), 1, "round-robin"), run(easgd.DiLoCo(period=4), 1))


def test_the_first_phase_of_plain_sgd_is_the_step_with_the_mean_gradient():
    x = X0.copy()
    for t in range(11):
        x = x - LR * np.mean([g(x, i, t) for i in range(3)], axis=0)
    ours = run(easgd.DiLoCo(period=5, first_phase=11), steps=12)
    np.testing.assert_allclose(ours.center[-1].numpy(), x, rtol=0, atol=1e-12)


def test_local_sgd_with_period_one_is_data_parallel_training_with_momentum_too():
    """The examples call it that: averaging x after every Nesterov step is the step with the mean gradient."""
    nesterov = functools.partial(torch.optim.SGD, lr=LR, momentum=0.9, nesterov=True)
    x = torch.from_numpy(X0.copy()).requires_grad_()
    optimizer = nesterov([x])
    for t in range(STEPS - 1):
        x.grad = torch.stack([torch_g(x.detach(), i, t) for i in range(3)]).mean(0)
        optimizer.step()
    ours = run(easgd.LocalSGD(period=1), optimizer=nesterov)
    np.testing.assert_allclose(ours.center[-1].numpy(), x.detach().numpy(), rtol=0, atol=1e-12)


def test_local_sgd_of_one_is_sgd():
    ours, theirs = run(easgd.LocalSGD(period=3), 1), run(easgd.SGD(), 1)
    np.testing.assert_allclose(ours.local, theirs.local, rtol=0, atol=1e-14)


# by hand -------------------------------------------------------------------------------------------------------------


def constant(method, p=2, steps=5, schedule="sync"):
    """Gradient 1 for worker 0 and 3 for worker 1, η = 1, from 0: two steps move the workers by −2 and −6."""
    out = easgd.simulate(
        lambda x, worker, step: torch.full_like(x, 1.0 + 2 * worker), torch.zeros(1, dtype=torch.float64), method,
        lr=1.0, workers=p, steps=steps, schedule=schedule,
    )  # fmt: skip
    return [round(float(x), 10) for x in out.center], [[round(float(x), 10) for x in row] for row in out.local]


def test_local_sgd_by_hand():
    center, local = constant(easgd.LocalSGD(period=2))
    assert center == [0, 0, 0, -4, -4, -8]
    assert local == [[0, 0], [-1, -3], [-2, -6], [-5, -7], [-6, -10], [-9, -11]]


def test_diloco_by_hand():
    """g = 4 each time. m = 4, x̃ = −½(4 + 2) = −3; m = 6, x̃ = −3 − ½(4 + 3) = −6.5."""
    assert constant(easgd.DiLoCo(period=2, outer_lr=0.5, outer_momentum=0.5))[0] == [0, 0, 0, -3, -3, -6.5]


def test_outer_adam_by_hand():
    """A constant g = 4: m/(1 − μᵗ) = 4 and √(s/(1 − β₂ᵗ)) = 4 at every t, so each step is η·4/(4 + ε) = 0.8."""
    assert constant(easgd.DiLoCo(period=2, outer="adam", outer_lr=1.0, outer_eps=1.0))[0] == [0, 0, 0, -0.8, -0.8, -1.6]


def test_delayed_nesterov_by_hand():
    """τ = 1, N = 2, η = μ = ½, turns 0 1 0 1 0 1. The messages' g: 1, 3 (both left from 0), then 1, 3 again.

    x̃ = −¼·1;  then −¼·3 = −1, and with Δ = 4: m = 2, x̃ = −1 − ¼·2 = −1.5.
    x̃ = −1.75; then −2.5, and with Δ = 4: m = 1 + 2 = 3, x̃ = −2.5 − ¼·3 = −3.25.
    """
    method = easgd.AsyncDiLoCo(period=1, outer_lr=0.5, outer_momentum=0.5, every=2)
    center, local = constant(method, steps=6, schedule="round-robin")
    assert center == [0, 0, 0, -0.25, -1.5, -1.75, -3.25]
    assert local[4] == [-1.25, -4.5]


def test_staleness_by_hand():
    """Worker 1's first message is one update old: it counts ½."""
    method = easgd.AsyncDiLoCo(period=1, outer_lr=1.0, outer_momentum=0.0, staleness=1.0)
    assert constant(method, steps=4, schedule="round-robin")[0] == [0, 0, 0, -1, -2.5]


def test_asynchronous_local_sgd_by_hand():
    """A p-th of each change when it comes."""
    assert constant(easgd.LocalSGD(period=1, sync=False), steps=4, schedule="round-robin")[0] == [0, 0, 0, -0.5, -2]


# bytes, deaths and settings ------------------------------------------------------------------------------------------


def test_nothing_is_exchanged_before_there_is_a_change():
    records = run(easgd.LocalSGD(period=4, first_phase=2), steps=11).records
    assert [r.clock for r in records if r.worker == 0 and r.bytes] == [1, 2, 6, 10]


def test_the_mean_is_over_those_who_live():
    out = run(easgd.LocalSGD(period=1), steps=12, faults=[easgd.Fault(1, 4.5, "death")], cost=easgd.CostModel(jitter=0))
    last = out.local[-2]
    torch.testing.assert_close(out.center[-1], (last[0] + last[2]) / 2, rtol=0, atol=1e-12)


BAD = {
    "muon": (lambda: easgd.DiLoCo(outer=torch.optim.Muon), "outer = Muon", 'write outer="sgd"'),
    "lbfgs": (lambda: easgd.DiLoCo(outer=torch.optim.LBFGS([torch.zeros(1)])), "outer = LBFGS", 'write outer="sgd"'),
    "a function": (lambda: easgd.DiLoCo(outer=lambda p: torch.optim.Muon(p)), "only supports 2D", 'write outer="sgd"'),
    "shampoo": (lambda: easgd.DiLoCo(outer="shampoo"), "outer = shampoo", "on each element alone"),
    "no optimizer": (lambda: easgd.DiLoCo(outer=3), "outer = 3", "it is no optimizer"),
    "no function": (lambda: easgd.DiLoCo(outer=lambda p: 3), "outer = 3", "it is no optimizer"),
    "decay": (lambda: easgd.DiLoCo(outer=torch.optim.AdamW), "outer's weight_decay = 0.01", "leave it out"),
    "twice": (lambda: easgd.DiLoCo(outer={"kind": "sgd", "lr": 1.0}, outer_lr=0.5), "outer_lr = 0.5", "outer says 1"),
    "no eps": (lambda: easgd.DiLoCo(outer="sgd", outer_eps=0.1), "outer_eps = 0.1", 'outer="adam"'),
    "table": (lambda: easgd.DiLoCo(outer={"rate": 1}), "outer's rate = 1", "it takes kind, lr"),
    "betas": (lambda: easgd.DiLoCo(outer={"kind": "adam", "betas": 3}), "outer's betas = 3", "two numbers"),
    "outer_lr": (lambda: easgd.DiLoCo(outer_lr=0.0), "outer_lr = 0.0", "write outer_lr=0.7"),
    "outer_momentum": (lambda: easgd.AsyncDiLoCo(outer_momentum=1.0), "outer_momentum = 1.0", "write outer_momentum="),
    "every": (lambda: easgd.AsyncDiLoCo(every=0), "every = 0", "write every=workers"),
    "staleness": (lambda: easgd.AsyncDiLoCo(staleness=-1), "staleness = -1", "write staleness=0.5"),
    "first phase": (lambda: easgd.LocalSGD(first_phase=-1), "first_phase = -1", "write first_phase=100"),
    "diloco alone": (lambda: run(easgd.DiLoCo(), schedule="async"), "schedule = async", 'write "sync"'),
    "localsgd alone": (lambda: run(easgd.LocalSGD(), schedule="async"), "schedule = async", "or sync=False"),
    "asyncdiloco in rounds": (lambda: run(easgd.AsyncDiLoCo()), "schedule = sync", 'write schedule="async"'),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_clear_line(case):
    call, value, remedy = BAD[case]
    with pytest.raises(SettingError) as caught:
        call()
    text = str(caught.value)
    assert value in text
    assert remedy in text
    assert "\n" not in text


def test_what_they_say_of_themselves():
    assert easgd.LocalSGD(first_phase=50).describe() == "LocalSGD: τ = 10 after 50 steps with τ = 1, synchronous"
    assert easgd.DiLoCo().describe() == "DiLoCo: τ = 100, outer nesterov: η = 0.7, μ = 0.9, synchronous"
    assert easgd.AsyncDiLoCo(every=4).describe().endswith("outer nesterov: η = 0.7, μ = 0.9, N = 4")


@pytest.mark.parametrize(
    ("method", "settings", "schedule", "made"),
    [
        ("localsgd", {}, None, easgd.LocalSGD()),
        ("localsgd", {}, "async", easgd.LocalSGD(sync=False)),
        ("diloco", {"outer_lr": "0.5"}, None, easgd.DiLoCo(outer_lr=0.5)),
        ("diloco", {"outer": "adam", "outer_eps": 0.01}, "sync", easgd.DiLoCo(outer="adam", outer_eps=0.01)),
        ("asyncdiloco", {"every": "4"}, None, easgd.AsyncDiLoCo(every=4)),
        ("easgd", {}, None, easgd.EASGD()),
    ],
)
def test_the_schedule_of_a_run_is_the_methods_unless_told(method, settings, schedule, made):
    config = easgd.Config(method=method, settings=settings, schedule=schedule).resolved()
    assert config.make_method() == made
    assert config.schedule == (schedule or ("sync" if getattr(made, "sync", False) else "async"))


def streamed(fragments, delay, mixing, steps, period=6, gradient=2.0, outer_lr=2.0):
    """Two equal workers, inner rate 1, an outer SGD, as the rule has it: x after every step, one element a fragment."""
    x, center, pulled, due, sent, rows = [1.0, 1.0], [1.0, 1.0], [1.0, 1.0], {}, 0, []

    def use(i, answer):
        x[i], pulled[i] = (1 - mixing) * answer + mixing * x[i], answer

    for step in range(steps):
        if step and step % (period // fragments) == 0:
            parts, sent = ([0, 1] if fragments == 1 else [sent % 2]), sent + 1
            for i in parts:
                center[i] += outer_lr * (x[i] - pulled[i])
                due.setdefault(step + delay - 1, []).append((i, center[i]))
        for answer in due.pop(step - 1, []) if delay == 0 else []:
            use(*answer)
        x = [value - gradient for value in x]
        for answer in due.pop(step, []) if delay else []:
            use(*answer)
        rows.append(list(x))
    return rows


@pytest.mark.parametrize("mixing", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("delay", [0, 1, 2])
@pytest.mark.parametrize("fragments", [1, 2])
def test_streaming_diloco_by_the_rule(fragments, delay, mixing):
    """The settings of torchft's published trajectories: gradient 2, inner rate 1, outer rate 2, τ = 6, p = 2."""
    method = easgd.DiLoCo(period=6, outer="sgd", outer_lr=2.0, fragments=fragments, delay=delay, mixing=mixing)
    run = Simulation(
        lambda x, worker, step: torch.full_like(x, 2.0), torch.ones(2, dtype=torch.float64), method, lr=1.0, workers=2,
        schedule="sync", optimizer=lambda params: torch.optim.SGD(params, lr=1.0), guard=0,
    )  # fmt: skip
    rows = []
    run.run(24, on_tick=lambda sim: rows.append(sim.workers[1].state.replica.read().tolist()))
    np.testing.assert_allclose(rows, streamed(fragments, delay, mixing, 24), atol=1e-5)
    if fragments == 2 and delay == 0:  # torchft sends k steps earlier, so that only without a delay the phases agree
        theirs = descendants.streaming([1.0, 1.0], 2, 6, 0, mixing, 2.0, 1.0, 2.0, 24)
        own = [(ours, rows_) for step, (ours, rows_) in enumerate(zip(rows, theirs, strict=True), 1) if step % 3]
        np.testing.assert_allclose(*zip(*own, strict=True), atol=1e-5)


def test_a_mixing_factor_is_a_share_and_a_first_phase_bears_no_delay():
    with pytest.raises(ValueError, match=r"mixing = 2: it is a share"):
        easgd.DiLoCo(mixing=2)
    with pytest.raises(ValueError, match=r"delay = 1: in the first phase"):
        easgd.LocalSGD(first_phase=10, delay=1)
