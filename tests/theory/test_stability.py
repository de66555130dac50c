"""Predicates against bounds, both against eigenvalues of the maps."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from easgd.theory import (
    easgd_lr_bound,
    easgd_map,
    easgd_moving_rate_bound,
    easgd_radius,
    easgd_stable,
    easgd_turn,
    sync_beta_bound,
    sync_lr_bound,
    sync_map,
    sync_stable,
)


def radius(matrix):
    return np.abs(np.linalg.eigvals(matrix)).max()


def test_bounds_by_hand():
    assert easgd_moving_rate_bound(1.0) == pytest.approx(2 / 3)
    assert easgd_moving_rate_bound(0.0) == 1.0
    assert easgd_moving_rate_bound(2.0) == 0.0
    assert math.isnan(easgd_moving_rate_bound(2.1))
    assert easgd_moving_rate_bound(0.5, h=2.0) == pytest.approx(2 / 3)
    assert easgd_lr_bound(2 / 3) == pytest.approx(1.0)
    assert easgd_lr_bound(0.0) == 2.0
    # p = 2, ηh = 1: (2 − β) > β  ⇒  β < 1
    assert sync_beta_bound(2, 1.0) == pytest.approx(1.0)
    assert sync_lr_bound(2, 1.0) == pytest.approx(1.0)
    assert math.isnan(sync_lr_bound(1, 1.5))


def test_edges_of_the_closed_region():
    assert easgd_stable(2.0, 0.0)
    assert easgd_stable(0.0, 1.0)
    assert not easgd_stable(2.0, 1e-6)
    assert not easgd_stable(0.5, -1e-6)
    assert not easgd_stable(4.0, 0.0)
    assert not sync_stable(4, 0.0, 0.5)  # γ = 1
    assert not sync_stable(4, 0.5, 0.0)


@settings(max_examples=150, deadline=None)
@given(eta=st.floats(0.0, 3.0), alpha=st.floats(0.0, 1.5), p=st.integers(1, 6))
def test_round_robin_condition_is_that_of_one_turn(eta, alpha, p):
    own = radius(easgd_turn(0, p, eta, alpha))
    assume(abs(own - 1) > 1e-9)
    assert easgd_stable(eta, alpha) == bool(own <= 1)
    if easgd_stable(eta, alpha):
        assert easgd_radius(p, eta, alpha) <= 1 + 1e-12


@pytest.mark.parametrize(
    ("p", "factor", "stable"), [(3, 1.01, False), (5, 1.01, False), (2, 1.01, True), (3, 0.99, True)]
)
def test_the_condition_is_sharp_for_odd_p_only(p, factor, stable):
    # ν = −1 solves the cycle's characteristic equation at the bound when p is odd; for even p it never does.
    alpha = factor * easgd_moving_rate_bound(1.0)
    assert (easgd_radius(p, 1.0, alpha) < 1) == stable
    assert (radius(easgd_map(p, 1.0, alpha)) < 1) == stable


@settings(max_examples=200, deadline=None)
@given(p=st.integers(1, 8), e=st.floats(1e-3, 4.0), beta=st.floats(1e-3, 6.0), h=st.sampled_from([0.5, 1.0, 7.0]))
def test_sync_condition_is_that_of_the_center(p, e, beta, h):
    # The paper's condition speaks of γ and φ, the two eigenvalues of M that the center can excite.
    alpha = beta / p
    reduced = np.array([[1 - e - alpha, alpha], [beta, 1 - beta]])
    value = radius(reduced)
    assume(abs(value - 1) > 1e-9)
    assert sync_stable(p, e / h, beta, h) == bool(value < 1)
    full = radius(sync_map(p, e / h, alpha, h))
    assert full == pytest.approx(max(value, abs(1 - alpha - e) if p > 1 else 0.0), abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(p=st.integers(1, 20), e=st.floats(1e-3, 1.99), beta=st.floats(1e-3, 1.99))
def test_sync_bounds_are_where_the_predicate_flips(p, e, beta):
    assume(abs(beta - 2 * p / (p + 1)) > 1e-6)  # there the largest η is 0, and rounding decides
    bound = sync_beta_bound(p, e)
    assert sync_stable(p, e, bound * (1 - 1e-9))
    assert not sync_stable(p, e, bound * (1 + 1e-9))
    limit = sync_lr_bound(p, beta)
    if math.isnan(limit):
        assert beta >= 2 * p / (p + 1) - 1e-9
    else:
        assert sync_stable(p, limit * (1 - 1e-9), beta)
        assert not sync_stable(p, limit * (1 + 1e-9), beta)


@settings(max_examples=100, deadline=None)
@given(alpha=st.floats(0.0, 1.0), h=st.floats(0.01, 100.0))
def test_round_robin_bounds_invert_each_other(alpha, h):
    lr = easgd_lr_bound(alpha, h)
    assert easgd_moving_rate_bound(lr, h) == pytest.approx(alpha, abs=1e-9)


def test_arrays_broadcast():
    grid = easgd_stable(np.linspace(0, 3, 4)[:, None], np.linspace(0, 1, 5)[None])
    assert grid.shape == (4, 5)
    assert grid[0].all()
    assert not grid[3].any()
