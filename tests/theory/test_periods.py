"""Period maps against plain loops written from the paper's pseudo-code, and against the paper's own maps."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easgd.theory import (
    METHODS,
    Cycle,
    admm_radius,
    center_moments,
    center_variance,
    easgd_map,
    easgd_radius,
    period_map,
    period_radius,
    sgd_variance,
    sync_map,
)
from easgd.theory.linear import spectral_radius

LR, H, ALPHA, DELTA, RHO, RATE = 0.2, 1.5, 0.15, 0.8, 2.0, 0.1


class WorkerState:
    """Everybody's variables as plain numbers; `noise()` is the next gradient noise.

    Nothing is updated in place, so that arrays of samples may stand for the numbers.
    """

    def __init__(self, method, p, tau, start=1.0, noise=lambda: 0.0):
        self.method, self.p, self.tau, self.noise = method, p, tau, noise
        self.x, self.v, self.clock = [start] * p, [0.0] * p, [0] * p
        self.lam, self.term = [0.0] * p, [start] * p
        self.center = self.z = start
        self.velocity, self.updates, self.pulled = 0.0, 0, [False] * p

    def g(self, x):
        return H * x - self.noise()

    def average(self):
        if self.method in ("adownpour", "mvadownpour"):
            a = RATE if self.method == "mvadownpour" else 1 / (self.updates + 1)
            self.z = (1 - a) * self.z + a * self.center
        self.updates += 1

    def tick(self, i):
        """One worker's turn of the round-robin schedule."""
        exchange = self.clock[i] % self.tau == 0
        self.clock[i] = self.clock[i] + 1
        x = self.x[i]
        if self.method in ("easgd", "eamsgd"):
            delta = DELTA if self.method == "eamsgd" else 0.0
            d = ALPHA * (x - self.center) if exchange else 0.0
            self.center = self.center + d
            self.v[i] = delta * self.v[i] - LR * self.g(x + delta * self.v[i])
            self.x[i] = x - d + self.v[i]
        elif "downpour" in self.method:
            if exchange:
                if self.pulled[i]:
                    self.average()
                    if self.method == "mdownpour":
                        self.velocity = DELTA * self.velocity + self.v[i]
                        self.center = self.center + DELTA * self.velocity
                    else:
                        self.center = self.center + self.v[i]
                self.pulled[i], self.x[i], self.v[i] = True, self.center, 0.0
            step = LR * self.g(self.x[i])
            self.x[i] = self.x[i] - step
            self.v[i] = self.v[i] - step
        elif self.method == "admm":
            if exchange:
                self.lam[i] = self.lam[i] - (x - self.center)
                pull = LR * RHO
                self.x[i] = (x - LR * self.g(x) + pull * (self.lam[i] + self.center)) / (1 + pull)
                self.term[i] = self.x[i] - self.lam[i]
                self.center = sum(self.term) / self.p
            else:
                self.x[i] = x - LR * self.g(x)

    def round(self):
        """One synchronous step of everybody: all exchange with the same center."""
        exchange = self.clock[0] % self.tau == 0
        self.clock = [t + 1 for t in self.clock]
        center = self.center
        if self.method in ("easgd", "eamsgd"):
            delta = DELTA if self.method == "eamsgd" else 0.0
            for i, x in enumerate(list(self.x)):
                d = ALPHA * (x - center) if exchange else 0.0
                self.center = self.center + d
                self.v[i] = delta * self.v[i] - LR * self.g(x + delta * self.v[i])
                self.x[i] = x - d + self.v[i]
        elif "downpour" in self.method:
            if exchange:
                if self.pulled[0]:
                    self.average()
                    push = sum(self.v)
                    self.velocity = DELTA * self.velocity + push
                    self.center = self.center + (DELTA * self.velocity if self.method == "mdownpour" else push)
                self.pulled, self.x, self.v = [True] * self.p, [self.center] * self.p, [0.0] * self.p
            for i in range(self.p):
                step = LR * self.g(self.x[i])
                self.x[i] = self.x[i] - step
                self.v[i] = self.v[i] - step
        elif self.method == "admm":
            for i, x in enumerate(list(self.x)):
                if not exchange:
                    self.x[i] = x - LR * self.g(x)
                    continue
                self.lam[i] = self.lam[i] - (x - center)
                pull = LR * RHO
                self.x[i] = (x - LR * self.g(x) + pull * (self.lam[i] + center)) / (1 + pull)
                self.term[i] = self.x[i] - self.lam[i]
            self.center = sum(self.term) / self.p

    def cycle(self, schedule):
        for _ in range(self.tau):
            if schedule == "sync":
                self.round()
            else:
                for i in range(self.p):
                    self.tick(i)

    def state(self, names):
        by_name = {"x": self.x, "v": self.v, "lam": self.lam, "term": self.term}
        shared = {"center": self.center, "z": self.z, "momentum": self.velocity}
        return np.array([shared[n] if n in shared else by_name[n[:-1]][int(n[-1])] for n in names])


def cycle_of(method, p, tau, schedule, clock=0):
    return Cycle(
        method, p, LR, h=H, period=tau, moving_rate=ALPHA, momentum=DELTA if method in ("eamsgd", "mdownpour") else 0.0,
        rho=RHO, rate=RATE, schedule=schedule, clock=clock,
    )  # fmt: skip


PARALLEL = ("easgd", "eamsgd", "downpour", "adownpour", "mvadownpour", "mdownpour", "admm")


@pytest.mark.parametrize("schedule", ["round-robin", "sync"])
@pytest.mark.parametrize(("p", "tau"), [(1, 1), (1, 4), (2, 3), (3, 1), (4, 7)])
@pytest.mark.parametrize("method", PARALLEL)
def test_cycle_map_predicts_the_loop(method, p, tau, schedule):
    loop = WorkerState(method, p, tau)
    rng = np.random.default_rng(3)
    if "downpour" not in method and method != "admm":  # those start where the paper starts them
        loop.x = list(rng.normal(size=p))
    for _ in range(3):
        # in the first cycle of a DOWNPOUR everybody only pulls: no update of the center, no tick of the master's clock
        if loop.updates or method not in ("adownpour", "mvadownpour") or loop.pulled[0]:
            cycle = cycle_of(method, p, tau, schedule, clock=loop.updates)
            expected = cycle.map() @ loop.state(cycle.names)
            loop.cycle(schedule)
            np.testing.assert_allclose(loop.state(cycle.names), expected, atol=1e-12)
        else:
            loop.cycle(schedule)


@pytest.mark.parametrize("momentum", [0.0, DELTA])
@pytest.mark.parametrize("average", ["", "mva", "a"])
def test_sequential_methods(momentum, average):
    # MSGD: v ← δv − ηg(x + δv), x ← x + v; z_{t+1} = (1 − a)z_t + a x_t
    x, v, z = 1.0, 0.5, -1.0
    cycle = Cycle(f"{average}sgd", 1, LR, h=H, momentum=momentum, period=3, rate=RATE, clock=4)
    values = {"x0": x, "v0": v, "z0": z}
    expected = cycle.map() @ [values[name] for name in cycle.names]
    if not momentum:
        v = 0.0
    for t in range(4, 7):
        a = RATE if average == "mva" else 1 / (t + 1)
        z = (1 - a) * z + a * x
        v = momentum * v - LR * H * (x + momentum * v)
        x += v
    result = {"x0": x, "v0": v, "z0": z}
    np.testing.assert_allclose(expected, [result[name] for name in cycle.names], atol=1e-14)


def test_equivalences_with_the_papers_maps():
    for p in (1, 2, 5):
        np.testing.assert_allclose(period_map("easgd", p, 0.3, moving_rate=0.2), easgd_map(p, 0.3, 0.2), atol=1e-14)
        np.testing.assert_allclose(
            period_map("easgd", p, 0.3, moving_rate=0.2, schedule="sync"), sync_map(p, 0.3, 0.2), atol=1e-14
        )
        assert period_radius("admm", p, 0.3, rho=2.0) == pytest.approx(admm_radius(p, 0.3, 2.0), abs=1e-10)
        assert period_radius("easgd", p, 0.3, moving_rate=0.2) == pytest.approx(easgd_radius(p, 0.3, 0.2), abs=1e-12)


def test_eamsgd_without_momentum_is_easgd():
    for schedule in ("round-robin", "sync"):
        one = period_radius("eamsgd", 3, 0.4, period=4, moving_rate=0.2, momentum=0.0, schedule=schedule)
        assert one == pytest.approx(period_radius("easgd", 3, 0.4, period=4, moving_rate=0.2, schedule=schedule))


def test_downpour_alone_is_sgd_and_every_average_shares_its_radius():
    # p = 1, τ = 1: x̃ ← x̃ + v, v ← −ηh x̃ is SGD on x̃ + v: radius |1 − ηh|
    assert period_radius("downpour", 1, 0.3) == pytest.approx(0.7)
    plain = period_radius("downpour", 3, 0.1, period=2)
    assert period_radius("mvadownpour", 3, 0.1, period=2, rate=0.5) == pytest.approx(plain)
    assert period_radius("adownpour", 3, 0.1, period=2, clock=0) == pytest.approx(plain)


def test_nesterov_limit_and_complex_roots():
    # λ² − (1 + δ)(1 − ηh)λ + δ(1 − ηh): complex inside, modulus √(δ(1 − ηh)); λ = −1 at ηh = 2(1 + δ)/(1 + 2δ).
    assert period_radius("msgd", 1, 0.1, momentum=0.99) == pytest.approx(math.sqrt(0.99 * 0.9), abs=1e-12)
    assert np.iscomplex(np.linalg.eigvals(period_map("msgd", 1, 0.1, momentum=0.99))).all()
    edge = 2 * 1.99 / 2.98
    assert period_radius("msgd", 1, edge - 1e-6, momentum=0.99) < 1
    assert period_radius("msgd", 1, edge + 1e-6, momentum=0.99) > 1


@settings(max_examples=60, deadline=None)
@given(
    method=st.sampled_from(METHODS),
    p=st.integers(1, 5),
    tau=st.integers(1, 6),
    e=st.floats(0.01, 1.5),
    schedule=st.sampled_from(["round-robin", "sync"]),
)
def test_radius_is_that_of_the_map(method, p, tau, e, schedule):
    workers = 1 if method in ("sgd", "msgd", "asgd", "mvasgd") else p
    extra = {"momentum": 0.7} if method in ("eamsgd", "mdownpour", "msgd") else {}
    cycle = Cycle(method, workers, e, period=tau, rho=1.5, moving_rate=0.3, schedule=schedule, clock=5, **extra)
    assert cycle.radius() == pytest.approx(float(spectral_radius(cycle.map())), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("method", [method for method in PARALLEL if "adownpour" not in method])
def test_growth_of_the_loop_is_the_radius(method):
    # after many cycles the error shrinks or grows by the radius each
    p, tau = 3, 2
    loop, sizes = WorkerState(method, p, tau), []
    cycle = cycle_of(method, p, tau, "round-robin")
    if method in ("easgd", "eamsgd"):
        loop.x = [1.0, -2.0, 0.5]
    for _ in range(400):
        loop.cycle("round-robin")
        sizes.append(np.abs(loop.state(cycle.names)).max())
    growth = (sizes[-1] / sizes[199]) ** (1 / 200)
    assert growth == pytest.approx(cycle.radius(), rel=5e-3)


def test_variance_agrees_with_lemma_1_and_sgd():
    for p, eta, beta in [(1, 0.3, 0.5), (4, 0.1, 0.9), (64, 0.05, 0.9)]:
        exact = center_moments(math.inf, p, eta, beta, 2.0, 3.0)[1]
        ours = center_variance("easgd", p, eta, moving_rate=beta / p, h=2.0, sigma=3.0, schedule="sync")
        assert ours == pytest.approx(exact, rel=1e-9)
    assert center_variance("sgd", 1, 0.3, h=2.0, period=5) == pytest.approx(sgd_variance(0.3, 2.0), rel=1e-9)
    assert center_variance("easgd", 4, 2.5, moving_rate=0.2) == math.inf


def test_moments_after_some_cycles_agree_with_lemma_1():
    mean, variance = Cycle("easgd", 4, 0.2, moving_rate=0.2, schedule="sync").moments(13, sigma=2.0, start=1.5)
    assert (mean, variance) == pytest.approx(center_moments(13, 4, 0.2, 0.8, 1.0, 2.0, 1.5, 1.5), rel=1e-9)


@pytest.mark.parametrize("schedule", ["round-robin", "sync"])
@pytest.mark.parametrize("method", ["easgd", "eamsgd", "downpour", "mvadownpour", "mdownpour", "admm"])
def test_monte_carlo_of_every_method(method, schedule):
    p, tau, samples, cycles, sigma = 3, 2, 20_000, 12, 1.7
    if method == "admm":
        tau = 3
    rng = np.random.default_rng(11)
    loop = WorkerState(method, p, tau, start=np.ones(samples), noise=lambda: sigma * rng.standard_normal(samples))
    for _ in range(cycles):
        loop.cycle(schedule)
    cycle = cycle_of(method, p, tau, schedule)
    # DOWNPOUR's first cycle pulls only; as a map it pushes v = 0 and, with z, averages a constant: the same numbers.
    mean, variance = cycle.moments(cycles, sigma=sigma)
    seen = loop.z if method == "mvadownpour" else loop.center
    assert abs(seen.mean() - mean) < 4 * math.sqrt(variance / samples) + 1e-12
    assert abs(seen.var() / variance - 1) < 4 * math.sqrt(2 / samples)


def test_arrays_make_stacks():
    lr, alpha = np.linspace(0.1, 1.9, 6)[:, None], np.array([0.1, 0.2, 0.3])
    grid = period_radius("eamsgd", 3, lr, moving_rate=alpha, momentum=0.5, period=3)
    assert grid.shape == (6, 3)
    assert grid[4, 2] == pytest.approx(
        period_radius("eamsgd", 3, float(lr[4, 0]), moving_rate=0.3, momentum=0.5, period=3), abs=1e-10
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: period_map("easgdd", 3, 0.1), "did you mean 'easgd'"),
        (lambda: period_map("easgd", 0, 0.1), "workers = 0"),
        (lambda: period_map("easgd", 3, 0.1, period=0), "period = 0"),
        (lambda: period_map("sgd", 3, 0.1), "sequential"),
        (lambda: period_map("admm", 3, 0.1), "needs rho"),
        (lambda: period_map("downpour", 3, 0.1, momentum=0.9), "use mdownpour"),
        (lambda: period_map("easgd", 3, 0.1, schedule="chaos"), "unknown schedule"),
        (lambda: period_map("eamsgd", 3, 0.1, momentum=1.5), "momentum = 1.5"),
        (lambda: center_variance("adownpour", 3, 0.1), "changes with time"),
    ],
)
def test_bad_input_is_one_clear_line(call, words):
    with pytest.raises(ValueError, match=words) as error:
        call()
    assert "\n" not in str(error.value)
