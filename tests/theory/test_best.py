"""Searches over the period maps, against answers known in closed form."""

import math

import numpy as np
import pytest

from easgd.theory import (
    center_mse,
    easgd_lr_bound,
    fastest,
    optimal,
    period_radius,
    stable_curvature,
    stable_lr,
    sync_lr_bound,
)


def test_known_limits():
    assert stable_curvature("sgd", 1, 0.1) == pytest.approx(20.0, rel=1e-9)
    assert stable_curvature("msgd", 1, 0.1, momentum=0.99) == pytest.approx(10 * 3.98 / 2.98, rel=1e-9)
    assert stable_curvature("easgd", 3, 0.01, moving_rate=0.3) == pytest.approx(100 * easgd_lr_bound(0.3), rel=1e-9)
    sync = stable_curvature("easgd", 4, 0.5, moving_rate=0.2, schedule="sync")
    assert sync == pytest.approx(2 * sync_lr_bound(4, 0.8), rel=1e-9)
    assert stable_lr("sgd", 1, h=4.0) == pytest.approx(0.5, rel=1e-9)


def test_downpour_bears_less_the_rarer_it_exchanges():
    # Synchronous, by hand: the sum of p workers moves x̃ by p((1 − e)^τ − 1) a cycle: stable while p(1 − (1 − e)^τ) < 2.
    p = 4
    for tau in (1, 4, 16, 64):
        e = 1 - (1 - 2 / p) ** (1 / tau)
        assert stable_curvature("downpour", p, 0.01, period=tau, schedule="sync") == pytest.approx(100 * e, rel=1e-7)
    limits = [stable_curvature("downpour", p, 0.01, period=tau) for tau in (1, 4, 16, 64)]
    assert limits == sorted(limits, reverse=True)
    assert limits[0] / limits[-1] > 40
    elastic = [stable_curvature("easgd", p, 0.01, period=tau) for tau in (1, 4, 16, 64)]
    assert min(elastic) > 0.6 * max(elastic)


def test_the_limit_is_where_the_radius_is_one():
    settings = {"period": 10, "momentum": 0.9, "moving_rate": 0.1}
    h = stable_curvature("eamsgd", 4, 0.05, **settings)
    assert period_radius("eamsgd", 4, 0.05, h=h * (1 - 1e-6), **settings) < 1
    assert period_radius("eamsgd", 4, 0.05, h=h * (1 + 1e-6), **settings) > 1


def test_unstable_from_the_start_is_zero():
    assert stable_curvature("easgd", 3, 0.1, moving_rate=1.3) == 0.0
    assert stable_curvature("admm", 3, 0.001, rho=2.5) == 0.0


def test_fastest_gradient_descent_is_two_over_mu_plus_l():
    best = fastest("sgd", 1, h=5.0, condition=10.0)
    assert best.lr == pytest.approx(2 / (0.5 + 5.0), rel=1e-3)
    assert best.value == pytest.approx(9 / 11, abs=1e-4)


@pytest.mark.parametrize("schedule", ["sync", "round-robin"])
def test_fastest_is_no_worse_than_its_neighbours(schedule):
    best = fastest("easgd", 3, condition=5.0, period=2, schedule=schedule)
    h = np.geomspace(0.2, 1, 9)
    for d_lr, d_alpha in [(1.05, 1.0), (0.95, 1.0), (1.0, 1.1), (1.0, 0.9), (1.05, 1.1), (0.95, 0.9)]:
        moved = period_radius(
            "easgd", 3, best.lr * d_lr, moving_rate=best.moving_rate * d_alpha, h=h, period=2, schedule=schedule
        )
        assert best.value <= moved.max() ** 0.5 + 1e-4


def test_optimal_agrees_with_lemma_1():
    best = optimal("easgd", 16, 100, h=2.0, sigma=10.0, start=1.0)
    assert best.value == pytest.approx(center_mse(100, 16, best.lr, 16 * best.moving_rate, 2.0, 10.0), rel=1e-9)
    lr, beta = np.geomspace(1e-4, 1, 60)[:, None], np.geomspace(1e-4, 1.9, 60)[None]
    assert best.value <= center_mse(100, 16, lr, beta, 2.0, 10.0).min() * (1 + 1e-6)
    alone = optimal("sgd", 1, 100, h=2.0, sigma=10.0)
    assert best.value < alone.value


def test_refusals():
    with pytest.raises(ValueError, match="at least one period"):
        optimal("easgd", 4, 5, period=10)
    with pytest.raises(ValueError, match="admm_radius"):
        fastest("admm", 3, rho=1.0)
    with pytest.raises(ValueError, match="scan admm_radius"):
        stable_lr("admm", 3, rho=1.0)
    assert math.isfinite(fastest("mdownpour", 4, momentum=0.5).value)
