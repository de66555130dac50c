"""Closed forms of the paper against the simulator, by Monte-Carlo. The two share no code.

One simulated vector holds n independent copies of the one-dimensional problem: g(x) = h·x − ξ, ξ ~ N(0, σ²). A sample
mean is then known to σ/√n and a sample variance to a relative √(2/n); tests allow 4.5 standard errors.
"""

import math

import numpy as np
import pytest
import torch

import easgd

N = 40_000


def noisy(h, sigma, seed=0):
    def gradient(x, worker, step):
        rng = np.random.default_rng([seed, worker, step])
        return h * x - sigma * torch.from_numpy(rng.standard_normal(len(x)))

    return gradient


@pytest.fixture(scope="module", params=[1, 10])
def lemma1(request):
    p, lr, beta, h, sigma = request.param, 0.3, 0.6, 1.2, 2.0
    run = easgd.simulate(
        noisy(h, sigma), torch.ones(N, dtype=torch.float64), easgd.EASGD(period=1, beta=beta),
        lr=lr, workers=p, steps=100, schedule="sync",
    )  # fmt: skip
    return p, lr, beta, h, sigma, run.center


@pytest.mark.parametrize("t", [0, 1, 2, 3, 10, 100])
def test_lemma_1_mean_and_variance_of_the_center(lemma1, t):
    p, lr, beta, h, sigma, center = lemma1
    mean, variance = easgd.theory.center_moments(t, p, lr, beta, h=h, sigma=sigma, center=1.0, x=1.0)
    assert center[t].mean().item() == pytest.approx(mean, abs=4.5 * math.sqrt(variance / N) + 1e-12)
    assert center[t].var().item() == pytest.approx(variance, rel=4.5 * math.sqrt(2 / N), abs=1e-12)


def test_the_variance_falls_as_one_over_p():
    """p·V is the corollary's limit for large p; at p = 50 it is near it, and 1/p holds between p = 25 and 50."""
    scaled = []
    for p in (25, 50):
        run = easgd.Simulation(
            noisy(1.0, 1.0), torch.zeros(8000, dtype=torch.float64), easgd.EASGD(period=1, beta=0.5),
            lr=0.5, workers=p, schedule="sync",
        )  # fmt: skip
        run.run(60)
        scaled.append(p * run.center.x.var().item())
    limit = easgd.theory.mse_limit(0.5, 0.5)
    assert scaled[0] == pytest.approx(scaled[1], rel=0.1)
    assert scaled[1] == pytest.approx(limit, rel=0.1)


def test_lemma_2_the_double_average_has_the_optimal_variance():
    """√t(z_t − x*) → N(0, σ²/(p h²)) whatever η and β; at t = 1500 the transient is below the test's resolution."""
    p, h, sigma, t, n = 4, 1.5, 2.0, 1500, 4000
    sim = easgd.Simulation(
        noisy(h, sigma), torch.zeros(n, dtype=torch.float64), easgd.averaged(easgd.EASGD(period=1, beta=0.8)),
        lr=0.5, workers=p, schedule="sync",
    )  # fmt: skip
    sim.run(t)
    z = math.sqrt(t) * sim.center.average
    assert z.var().item() == pytest.approx(sigma**2 / (p * h**2), rel=4.5 * math.sqrt(2 / n))
    # normal: kurtosis 3 within 4.5 of its standard error √(24/n)
    assert ((z - z.mean()) ** 4).mean().item() / z.var().item() ** 2 == pytest.approx(3, abs=4.5 * math.sqrt(24 / n))


@pytest.mark.parametrize(("schedule", "momentum"), [("sync", 0.0), ("round-robin", 0.0), ("sync", 0.6)])
@pytest.mark.parametrize("fragments", [1, 2])
def test_the_stable_region_with_a_delay_is_sharp(schedule, momentum, fragments):
    """The simulator diverges 3 % outside the region of the period map with delay k = 3, τ = 4, and not 3 % inside."""
    p, tau, k, lr = 3, 4, 3, 0.2
    low, high = 0.0, 2.0 / p * 2

    def radius(alpha):
        settings = {"period": tau, "delay": k, "moving_rate": alpha, "momentum": momentum, "schedule": schedule}
        return easgd.theory.period_radius("eamsgd", p, lr, **settings)

    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if radius(middle) < 1 else (low, middle)

    def final(alpha):
        kind = easgd.EAMSGD if momentum else easgd.EASGD
        more = {"momentum": momentum} if momentum else {}
        method = kind(period=tau, delay=k, moving_rate=alpha, fragments=fragments, sync=schedule == "sync", **more)
        start = torch.ones(2, dtype=torch.float64)
        sim = easgd.Simulation(lambda x, worker, step: x, start, method, lr=lr, workers=p, schedule=schedule)
        sim.run(1200 * (1 if schedule == "sync" else p))
        return sim.center.x.abs().max().item()

    assert low < 1
    assert final(0.97 * low) < 1e-2
    assert final(1.03 * low) > 1e2


@pytest.mark.parametrize("k", [1, 4])
def test_the_variance_with_a_delay(k):
    p, lr, beta, h, sigma = 3, 0.3, 0.6, 1.2, 2.0
    sim = easgd.Simulation(
        noisy(h, sigma), torch.zeros(N, dtype=torch.float64), easgd.EASGD(period=5, beta=beta, delay=k, sync=True),
        lr=lr, workers=p, schedule="sync",
    )  # fmt: skip
    sim.run(80)
    variance = easgd.theory.delay_variance(p, lr, beta, h, sigma, period=5, delay=k)
    assert sim.center.x.var().item() == pytest.approx(variance, rel=4.5 * math.sqrt(2 / N))


@pytest.mark.parametrize(("lr", "alpha"), [(0.5, 0.857143), (1.9, 0.0952381)])
def test_the_stability_condition_is_sharp(lr, alpha):
    """α ≤ (4 − 2η)/(4 − η) in the round-robin scheme: 2 % inside shrinks, 2 % outside grows."""

    def final(scale):
        run = easgd.simulate(
            lambda x, worker, step: x, torch.ones(1, dtype=torch.float64),
            easgd.EASGD(period=1, moving_rate=alpha * scale), lr=lr, workers=1, steps=4000,
        )  # fmt: skip
        return run.local[-1].abs().max().item()

    assert alpha == pytest.approx((4 - 2 * lr) / (4 - lr), rel=1e-3)
    assert final(0.98) < 1e-3
    assert final(1.02) > 1e3


@pytest.mark.parametrize("method", [easgd.EASGD, easgd.EAMSGD])
@pytest.mark.parametrize(("workers", "period", "alpha"), [(2, 1, 0.45), (2, 5, 0.1), (5, 10, 0.225)])
def test_on_a_slope_the_center_has_the_speed_of_p_in_p_plus_1_workers(method, workers, period, alpha):
    """A constant gradient −1: a worker alone goes η/(1 − δ) a step, and all p + 1 points together p/(p + 1) of it."""
    given = {"momentum": 0.9} if method is easgd.EAMSGD else {}
    rounds = 100 * period
    run = easgd.simulate(
        lambda x, worker, step: -torch.ones_like(x), torch.zeros(1, dtype=torch.float64),
        method(period=period, moving_rate=alpha, **given), lr=0.1, workers=workers, steps=workers * 2 * rounds,
    )  # fmt: skip
    # The way of a whole number of periods, long after the springs are drawn out.
    gone = (run.center[-1] - run.center[-1 - workers * rounds]).item()
    alone = rounds * 0.1 / (1 - given.get("momentum", 0.0))
    assert gone / alone == pytest.approx(easgd.theory.center_speed(workers), rel=1e-4)


def test_the_slowest_error_shrinks_at_the_speed_of_the_center():
    """The same from the linear maps: at a curvature h that is almost 0 a period multiplies by 1 − τηh·p/(p + 1)."""
    for workers in (2, 4, 16):
        radius = easgd.theory.period_radius("easgd", workers, 0.1, h=1e-5, period=10, moving_rate=0.9 / workers)
        assert (1 - radius) / (10 * 0.1 * 1e-5) == pytest.approx(easgd.theory.center_speed(workers), rel=1e-3)
