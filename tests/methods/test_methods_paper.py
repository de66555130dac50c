"""Every method equals the paper's own equations (tests/support/paper.py) on whole trajectories, to 1e-10.

The problem is a noisy, ill-conditioned quadratic in three dimensions whose noise depends on worker and clock only, so
that both sides see the same stochastic gradients.
"""

import numpy as np
import pytest
import torch

import easgd
import paper

A = np.array([[1.0, 0.3, 0.0], [0.3, 0.5, -0.2], [0.0, -0.2, 2.0]])
X0 = np.array([1.0, -2.0, 0.5])
STEPS = 40


def noise(worker, step):
    return np.random.default_rng([7, worker, step]).normal(size=3)


def g(x, worker, step):
    return A @ x - noise(worker, step)


def torch_g(x, worker, step):
    return torch.from_numpy(A) @ x - torch.from_numpy(noise(worker, step))


RATES = {"constant": None, "decay": 0.5}


def rate(name, lr=0.1):
    gamma = RATES[name]
    return (lambda t: lr) if gamma is None else (lambda t: lr / (1 + gamma * t) ** 0.5)


def run(method, p, schedule, rates="constant", wd=0.0, lr=0.1, steps=STEPS):
    gamma = RATES[rates]
    make = None if gamma is None else (lambda opt: torch.optim.lr_scheduler.LambdaLR(opt, easgd.decay(gamma)))
    return easgd.simulate(
        torch_g, torch.from_numpy(X0), method, lr=lr, workers=p, steps=steps, schedule=schedule,
        scheduler=make, weight_decay=wd,
    )  # fmt: skip


def agree(ours, theirs):
    center, local, average = theirs
    np.testing.assert_allclose(ours.center.numpy(), center, rtol=0, atol=1e-10)
    np.testing.assert_allclose(ours.local.numpy(), local, rtol=0, atol=1e-10)
    if average is None:
        assert ours.average is None
    else:
        np.testing.assert_allclose(ours.average.numpy(), average, rtol=0, atol=1e-10)


WORKERS = pytest.mark.parametrize("p", [1, 2, 3, 4])
PERIODS = pytest.mark.parametrize("tau", [1, 2, 3, 7])
RATE = pytest.mark.parametrize("rates", RATES)
DECAY = pytest.mark.parametrize("wd", [0.0, 0.3])


@WORKERS
@PERIODS
@RATE
@DECAY
@pytest.mark.parametrize("delta", [0.0, 0.9])
@pytest.mark.parametrize("schedule", ["round-robin", "sync"])
def test_easgd_and_eamsgd(p, tau, rates, wd, delta, schedule):
    loop = paper.easgd_round_robin if schedule == "round-robin" else paper.easgd_sync
    theirs = loop(g, X0, p, tau, lambda eta: 0.5 / p, rate(rates), STEPS, delta=delta, wd=wd)
    method = easgd.EAMSGD(period=tau, beta=0.5, momentum=delta) if delta else easgd.EASGD(period=tau, beta=0.5)
    agree(run(method, p, schedule, rates, wd), theirs)


@RATE
def test_rho_makes_the_moving_rate_follow_the_learning_rate(rates):
    theirs = paper.easgd_round_robin(g, X0, 2, 2, lambda eta: eta * 1.5, rate(rates), STEPS)
    agree(run(easgd.EASGD(period=2, rho=1.5), 2, "round-robin", rates), theirs)


@WORKERS
@PERIODS
@RATE
@DECAY
@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("average", [None, "mean", 0.1])
def test_downpour_and_its_averages(p, tau, rates, wd, sync, average):
    theirs = paper.downpour(g, X0, p, tau, rate(rates, 0.03), STEPS, wd, sync, average)
    method = {
        None: easgd.Downpour(period=tau),
        "mean": easgd.ADownpour(period=tau),
        0.1: easgd.MVADownpour(period=tau, rate=0.1),
    }[average]
    agree(run(method, p, "sync" if sync else "round-robin", rates, wd, lr=0.03), theirs)


@WORKERS
@RATE
@DECAY
@pytest.mark.parametrize("sync", [False, True])
def test_mdownpour_as_printed(p, rates, wd, sync):
    theirs = paper.mdownpour(g, X0, p, 0.8, rate(rates, 0.02), STEPS, wd, sync)
    agree(run(easgd.MDownpour(momentum=0.8), p, "sync" if sync else "round-robin", rates, wd, lr=0.02), theirs)


@WORKERS
@RATE
@DECAY
@pytest.mark.parametrize("sync", [False, True])
def test_admm(p, rates, wd, sync):
    theirs = paper.admm(g, X0, p, 0.7, rate(rates), STEPS, wd, sync)
    agree(run(easgd.ADMM(0.7), p, "sync" if sync else "round-robin", rates, wd), theirs)


@RATE
@DECAY
@pytest.mark.parametrize("schedule", ["round-robin", "sync", "async"])
@pytest.mark.parametrize("name", ["sgd", "msgd", "asgd", "mvasgd"])
def test_sequential(name, schedule, rates, wd):
    method, delta, average = {
        "sgd": (easgd.SGD(), 0.0, None),
        "msgd": (easgd.MSGD(momentum=0.9), 0.9, None),
        "asgd": (easgd.ASGD(), 0.0, "mean"),
        "mvasgd": (easgd.MVASGD(rate=0.2), 0.0, 0.2),
    }[name]
    theirs = paper.sequential(g, X0, delta, rate(rates), STEPS, wd, average)
    agree(run(method, 1, schedule, rates, wd), theirs)


@WORKERS
def test_the_double_average_of_easgd(p):
    theirs = paper.easgd_sync(g, X0, p, 1, lambda eta: 0.5 / p, rate("constant"), STEPS, average=True)
    ours = run(easgd.averaged(easgd.EASGD(period=1, beta=0.5)), p, "sync")
    agree(ours, theirs)
    # z_{t+1} is the plain mean of x̃_0 … x̃_t (equation of the double averaging sequence)
    np.testing.assert_allclose(ours.average[10], ours.center[:10].mean(0), rtol=0, atol=1e-12)


# By hand: F = x²/2, x0 = 1, η = 0.1, α = 0.2, p = 2, τ = 1, round-robin --------------------------------------------


def half_square(x, worker, step):
    return x


def test_easgd_by_hand():
    """
    tick 0, worker 0: d = 0.2(1 − 1) = 0;      x⁰ = 1 − 0.1·1 − 0      = 0.9;    x̃ = 1
    tick 1, worker 1: d = 0;                   x¹ = 0.9;                         x̃ = 1
    tick 2, worker 0: d = 0.2(0.9 − 1) = −0.02; x⁰ = 0.9 − 0.09 + 0.02 = 0.83;   x̃ = 0.98
    tick 3, worker 1: d = 0.2(0.9 − 0.98) = −0.016; x¹ = 0.9 − 0.09 + 0.016 = 0.826; x̃ = 0.964
    """
    method = easgd.EASGD(period=1, moving_rate=0.2)
    run = easgd.simulate(half_square, torch.ones(1, dtype=torch.float64), method, lr=0.1, workers=2, steps=4)
    np.testing.assert_allclose(run.center[:, 0], [1, 1, 1, 0.98, 0.964], atol=1e-15)
    np.testing.assert_allclose(
        run.local[:, :, 0], [[1, 1], [0.9, 1], [0.9, 0.9], [0.83, 0.9], [0.83, 0.826]], atol=1e-15
    )


def test_eamsgd_by_hand():
    """
    δ = 0.5, α = 0.2, η = 0.1, p = 1, τ = 1.
    t 0: d = 0;  v = −0.1·1 = −0.1;  x = 0.9;  x̃ = 1
    t 1: d = 0.2(0.9 − 1) = −0.02;  look-ahead 0.9 − 0.05 = 0.85;  v = −0.05 − 0.085 = −0.135;
         x = 0.9 + 0.02 − 0.135 = 0.785;  x̃ = 0.98
    t 2: d = 0.2(0.785 − 0.98) = −0.039;  look-ahead 0.785 − 0.0675 = 0.7175;  v = −0.0675 − 0.07175 = −0.13925;
         x = 0.785 + 0.039 − 0.13925 = 0.68475;  x̃ = 0.941
    The wrong sign of the look-ahead would give v = −0.05 − 0.095 at t 1; the force inside v, v = −0.115.
    """
    method = easgd.EAMSGD(period=1, moving_rate=0.2, momentum=0.5)
    run = easgd.simulate(half_square, torch.ones(1, dtype=torch.float64), method, lr=0.1, workers=1, steps=3)
    np.testing.assert_allclose(run.local[:, 0, 0], [1, 0.9, 0.785, 0.68475], atol=1e-15)
    np.testing.assert_allclose(run.center[:, 0], [1, 1, 0.98, 0.941], atol=1e-15)


def test_downpour_by_hand():
    """
    p = 2, τ = 1, η = 0.1. A turn begins with the exchange; what it gathers travels on the worker's next turn.
    tick 0, worker 0: pull 1;                    x⁰ = 0.9
    tick 1, worker 1: pull 1;                    x¹ = 0.9
    tick 2, worker 0: x̃ = 1 − 0.1 = 0.9;         x⁰ = 0.9 − 0.09 = 0.81
    tick 3, worker 1: x̃ = 0.9 − 0.1 = 0.8;       x¹ = 0.8 − 0.08 = 0.72
    tick 4, worker 0: x̃ = 0.8 − 0.09 = 0.71;     x⁰ = 0.639
    z (mean): updates happen at ticks 2, 3, 4: z = 1, then (1 + 0.9)/2 = 0.95, then (1 + 0.9 + 0.8)/3 = 0.9
    """
    run = easgd.simulate(half_square, torch.ones(1, dtype=torch.float64), easgd.ADownpour(), lr=0.1, workers=2, steps=5)
    np.testing.assert_allclose(run.center[:, 0], [1, 1, 1, 0.9, 0.8, 0.71], atol=1e-15)
    np.testing.assert_allclose(run.local[5, :, 0], [0.639, 0.72], atol=1e-15)
    np.testing.assert_allclose(run.average[:, 0], [1, 1, 1, 1, 0.95, 0.9], atol=1e-15)


def test_mdownpour_by_hand():
    """
    p = 1, δ = 0.5, η = 0.1: pull, g = 1; v = −0.1, x̃ = 1 − 0.05 = 0.95, g = 0.95;
    v = −0.05 − 0.095 = −0.145, x̃ = 0.95 − 0.0725 = 0.8775.
    """
    run = easgd.simulate(
        half_square, torch.ones(1, dtype=torch.float64), easgd.MDownpour(momentum=0.5), lr=0.1, workers=1, steps=3
    )
    np.testing.assert_allclose(run.center[:, 0], [1, 1, 0.95, 0.8775], atol=1e-15)


def test_admm_by_hand():
    """
    p = 2, η = 0.5, ρ = 2 (ηρ = 1), x0 = 1, λ = 0.
    tick 0, worker 0: λ⁰ = 0; x⁰ = (1 − 0.5 + 1·(0 + 1))/2 = 0.75; x̃ = (0.75 + 1)/2 = 0.875
    tick 1, worker 1: λ¹ = 0 − (1 − 0.875) = −0.125; x¹ = (1 − 0.5 + (−0.125 + 0.875))/2 = 0.625;
                      x̃ = (0.75 + 0.625 + 0.125)/2 = 0.75
    tick 2, worker 0: λ⁰ = −(0.75 − 0.75) = 0; x⁰ = (0.75 − 0.375 + 0.75)/2 = 0.5625; x̃ = (0.5625 + 0.75)/2 = 0.65625
    """
    run = easgd.simulate(half_square, torch.ones(1, dtype=torch.float64), easgd.ADMM(2.0), lr=0.5, workers=2, steps=3)
    np.testing.assert_allclose(run.center[:, 0], [1, 0.875, 0.75, 0.65625], atol=1e-15)
