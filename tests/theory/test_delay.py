"""The delayed exchange against loops written from its rule, against Monte-Carlo, and against k = 1."""

import math

import numpy as np
import pytest

from easgd.theory import (
    Cycle,
    FragmentCycle,
    center_moments,
    center_variance,
    delay_beta_bound,
    delay_cost,
    delay_stable,
    delay_variance,
    easgd_moving_rate_bound,
    stable_curvature,
    worker_variance,
)

LR, ALPHA = 0.15, 0.2


class Loop:
    """p workers on x ↦ A x, their answers used k steps later, their elements exchanged in fragments.

    Vectors have their elements first and samples last; nothing here comes from the library.
    """

    def __init__(self, A, p, tau, k, delta, phase, noise=lambda: 0.0, samples=1, start=None):
        self.A, self.p, self.tau, self.k, self.delta, self.phase, self.noise = A, p, tau, k, delta, phase, noise
        n = len(A)
        start = np.zeros((p + 1, n, samples)) if start is None else start
        self.x, self.center = [start[i].copy() for i in range(p)], start[p].copy()
        self.v = [np.zeros((n, samples)) for _ in range(p)]
        self.clock = [0] * p
        self.answers = [{} for _ in range(p)]  # of each worker: (element, step after which it is due) → d

    def ask(self, i, center):
        """Return what worker i asks for at the start of its step, element by element."""
        change = np.zeros_like(center)
        for j in range(len(self.A)):
            if self.clock[i] % self.tau == self.phase[j]:
                change[j] = ALPHA * (self.x[i][j] - center[j])
                self.answers[i][j, self.clock[i] + self.k - 1] = change[j].copy()
        return change

    def step(self, i):
        ahead = self.x[i] + self.delta * self.v[i]
        self.v[i] = self.delta * self.v[i] - LR * (self.A @ ahead - self.noise())
        self.x[i] = self.x[i] + self.v[i]
        for j in range(len(self.A)):
            if (d := self.answers[i].pop((j, self.clock[i]), None)) is not None:
                self.x[i][j] = self.x[i][j] - d
        self.clock[i] += 1

    def steps(self, count, schedule):
        for _ in range(count):
            if schedule == "sync":
                self.center = self.center + sum([self.ask(i, self.center) for i in range(self.p)])
                for i in range(self.p):
                    self.step(i)
            else:
                for i in range(self.p):
                    self.center = self.center + self.ask(i, self.center)
                    self.step(i)


CASES = [(1, 3, 2), (2, 4, 1), (3, 5, 4), (4, 6, 3)]  # p, τ, k


@pytest.mark.parametrize("schedule", ["round-robin", "sync"])
@pytest.mark.parametrize("delta", [0.0, 0.8])
@pytest.mark.parametrize(("p", "tau", "k"), CASES)
def test_the_map_predicts_the_loop(p, tau, k, delta, schedule):
    start = np.random.default_rng(5).normal(size=(p + 1, 1, 1))
    loop = Loop(np.array([[1.5]]), p, tau, k, delta, [0], start=start)
    cycle = Cycle("eamsgd", p, LR, h=1.5, period=tau, moving_rate=ALPHA, momentum=delta, delay=k, schedule=schedule)
    by_name = dict.fromkeys(cycle.names, 0.0)
    by_name |= {f"x{i}": start[i, 0, 0] for i in range(p)} | {"center": start[p, 0, 0]}
    expected = np.linalg.matrix_power(cycle.map(), 3) @ [by_name[name] for name in cycle.names]
    loop.steps(3 * tau, schedule)
    seen = {f"x{i}": loop.x[i][0, 0] for i in range(p)} | {f"v{i}": loop.v[i][0, 0] for i in range(p)}
    seen["center"] = loop.center[0, 0]
    np.testing.assert_allclose([seen[name] for name in cycle.names], expected, atol=1e-12)


@pytest.mark.parametrize("schedule", ["round-robin", "sync"])
@pytest.mark.parametrize(("delta", "k"), [(0.0, 3), (0.7, 4), (0.7, 1)])
def test_monte_carlo_of_center_and_workers(delta, k, schedule):
    p, tau, sigma, samples = 3, 5, 1.3, 20_000
    rng = np.random.default_rng(8)
    noise = lambda: sigma * rng.standard_normal((1, samples))  # noqa: E731
    loop = Loop(np.array([[1.0]]), p, tau, k, delta, [0], noise, samples)
    settings = {"period": tau, "moving_rate": ALPHA, "momentum": delta, "delay": k, "schedule": schedule}
    loop.steps(40 * tau, schedule)
    assert loop.center.var() == pytest.approx(
        center_variance("easgd", p, LR, sigma=sigma, **settings), rel=4.5 * math.sqrt(2 / samples)
    )
    seen = []
    for _ in range(tau):  # x where each gradient of a period is taken
        seen.append(np.mean([x.var() for x in loop.x]))
        loop.steps(1, schedule)
    expected = worker_variance("easgd", p, LR, sigma=sigma, **settings)
    assert np.mean(seen) == pytest.approx(expected, rel=4.5 * math.sqrt(2 / samples))


def test_delay_one_is_the_papers():
    for settings in ({"schedule": "sync"}, {"schedule": "round-robin", "momentum": 0.9}):
        one = Cycle("easgd", 3, 0.2, period=4, delay=1, **settings)
        paper = Cycle("easgd", 3, 0.2, period=4, **settings)
        assert (one.map() == paper.map()).all()
        cost = delay_cost("easgd", 3, 0.2, period=4, delay=1, **settings)
        assert (cost.center, cost.worker) == (1.0, 1.0)
    exact = center_moments(math.inf, 4, 0.3, 0.9, 2.0, 3.0)[1]
    assert delay_variance(4, 0.3, 0.9, 2.0, 3.0) == pytest.approx(exact, rel=1e-12)


def test_closed_forms_agree_with_the_matrices():
    e, beta = np.linspace(0.03, 1.97, 14)[:, None], np.linspace(0.1, 2.1, 11)
    for p, tau, k in [(1, 4, 3), (4, 1, 1), (4, 7, 3), (9, 8, 7)]:
        settings = {"period": tau, "moving_rate": beta / p, "delay": k, "schedule": "sync"}
        radius = Cycle("easgd", p, e, **settings).radius()
        assert (delay_stable(p, e, beta, period=tau, delay=k) == (radius < 1)).all()
        found, exact = delay_variance(p, e, beta, period=tau, delay=k), center_variance("easgd", p, e, **settings)
        np.testing.assert_allclose(found, exact, rtol=1e-8)
    bound = delay_beta_bound(4, 0.3, period=6, delay=4)
    assert delay_stable(4, 0.3, bound - 1e-9, period=6, delay=4)
    assert not delay_stable(4, 0.3, bound + 1e-9, period=6, delay=4)
    assert math.isnan(delay_beta_bound(4, 1.5, period=6, delay=4))


def test_the_stable_region_is_where_the_loop_stays_small():
    for k in (1, 4):
        limit = delay_beta_bound(3, LR, period=5, delay=k)
        for factor, grows in ((0.97, False), (1.03, True)):
            alpha = limit * factor / 3
            x, center, pending = np.array([1.0, -2.0, 0.5]), 0.0, np.zeros(3)
            for t in range(1500):
                if t % 5 == 0:
                    pending = alpha * (x - center)
                    center += pending.sum()
                x = (1 - LR) * x
                if t % 5 == k - 1:
                    x -= pending
            assert (abs(center) > 1e3) == grows
            assert (abs(center) < 1e-3) == (not grows)


def test_momentum_pays_for_a_delay_and_plain_sgd_hardly_does():
    plain = delay_cost("easgd", 4, 0.1, period=10, delay=9, schedule="sync")
    fast = delay_cost("eamsgd", 4, 0.1, period=10, delay=9, momentum=0.99, schedule="sync")
    assert 0.9 < plain.center < 1.1
    assert fast.center > 4
    assert stable_curvature("easgd", 4, 1.0, period=10, delay=9) == pytest.approx(1.9721, abs=1e-3)


# fragments -----------------------------------------------------------------------------------------------------


def coupled(n, seed):
    root = np.random.default_rng(seed).normal(size=(n, n))
    return root @ root.T / n + 0.3 * np.eye(n)


@pytest.mark.parametrize("schedule", ["round-robin", "sync"])
@pytest.mark.parametrize(("delta", "k", "fragments"), [(0.0, 1, 2), (0.0, 4, 3), (0.6, 3, 2), (0.6, 5, 6)])
def test_coupled_fragments_shrink_as_the_loop_does(delta, k, fragments, schedule):
    n, p, tau = 6, 3, 6
    A = coupled(n, 1)
    cycle = FragmentCycle(
        A, fragments, p, LR, period=tau, moving_rate=ALPHA, momentum=delta, delay=k, schedule=schedule
    )  # fmt: skip
    phase = [(j * fragments // n) * tau // fragments for j in range(n)]
    loop = Loop(A, p, tau, k, delta, phase, start=np.random.default_rng(2).normal(size=(p + 1, n, 1)))
    sizes = []
    for _ in range(160):
        loop.steps(tau, schedule)
        sizes.append(math.sqrt(sum((x**2).sum() for x in loop.x) + (loop.center**2).sum()))
    growth = (sizes[-1] / sizes[79]) ** (1 / 80)
    assert growth == pytest.approx(cycle.radius(), rel=2e-2)


def test_coupled_fragments_vary_as_the_loop_does():
    n, p, tau, k, samples = 4, 2, 4, 3, 12_000
    A, rng = coupled(n, 4), np.random.default_rng(3)
    loop = Loop(A, p, tau, k, 0.5, [0, 0, 2, 2], lambda: rng.standard_normal((n, samples)), samples)
    loop.steps(60 * tau, "sync")
    cycle = FragmentCycle(A, 2, p, LR, period=tau, moving_rate=ALPHA, momentum=0.5, delay=k)
    np.testing.assert_allclose(loop.center.var(axis=1), cycle.variance(), rtol=4.5 * math.sqrt(2 / samples))


@pytest.mark.parametrize("schedule", ["round-robin", "sync"])
def test_fragments_without_coupling_are_one_map_with_other_phases(schedule):
    h = np.array([0.5, 2.0, 1.0])
    for delta, k in ((0.0, 2), (0.8, 5)):
        cycle = FragmentCycle(
            np.diag(h), 3, 2, LR, period=6, moving_rate=ALPHA, momentum=delta, delay=k, schedule=schedule
        )  # fmt: skip
        same = Cycle("eamsgd", 2, LR, h=h, period=6, moving_rate=ALPHA, momentum=delta, delay=k, schedule=schedule)
        assert cycle.radius() == pytest.approx(same.radius().max(), rel=1e-9)
        np.testing.assert_allclose(cycle.variance(), same.variance(), rtol=1e-9)


def test_the_papers_bound_holds_for_fragments_of_any_hessian():
    for seed in range(8):
        A = coupled(5, seed)
        h = float(np.linalg.eigvalsh(A)[-1])
        lr = 1.2 / h
        alpha = easgd_moving_rate_bound(lr, h)
        for fragments in (1, 2, 5):
            cycle = FragmentCycle(A, fragments, 3, lr, period=10, moving_rate=alpha, schedule="round-robin")
            assert cycle.radius() <= 1 + 1e-12


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Cycle("easgd", 3, 0.1, period=4, delay=4), "delay = 4"),
        (lambda: Cycle("easgd", 3, 0.1, period=4, delay=0), "delay = 0"),
        (lambda: Cycle("downpour", 3, 0.1, period=4, delay=2), "needs its answer"),
        (lambda: worker_variance("downpour", 3, 0.1), "use center_variance"),
        (lambda: delay_variance(4, 0.1, 0.9, period=3, delay=3), "below the period"),
        (lambda: FragmentCycle([[1.0]], 2, 1, 0.1), "fragments = 2"),
        (lambda: FragmentCycle(np.eye(3), [0, 2, 2], 1, 0.1), "without a gap"),
        (lambda: FragmentCycle(np.eye(3), 2, 1, 0.1, period=3), "must divide the period"),
        (lambda: FragmentCycle([[1.0, 2.0]], 1, 1, 0.1), "square"),
    ],
)
def test_bad_input_is_one_clear_line(call, words):
    with pytest.raises(ValueError, match=words) as error:
        call()
    assert "\n" not in str(error.value)
