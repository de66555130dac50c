"""The strongly convex theorem: its matrix, its condition, and that it does bound what EASGD does."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easgd.theory import convex_bound, convex_lr_bound


def test_matrix_by_hand():
    # μ = 1, L = 4: μL/(μ + L) = 0.8, 2√(μL)/(μ + L) = 0.8; η = 0.1: γ₁ = 0.16, γ₂ = 0.8·0.2 = 0.16; α = 0.5/5 = 0.1
    bound = convex_bound(5, 0.1, 0.5, mu=1.0, L=4.0, sigma=3.0)
    np.testing.assert_allclose(bound.matrix, [[0.58, 0.16, 0.1], [0, 0.74, 0.1], [0.5, 0, 0.5]], atol=1e-14)
    np.testing.assert_allclose(bound.noise, [0.018, 0.09, 0], atol=1e-14)
    assert bound.holds
    assert bound.monotone
    assert convex_lr_bound(5, 0.5, 1.0, 4.0) == pytest.approx(0.36)
    assert not convex_bound(5, 0.37, 0.5, 1.0, 4.0).holds
    assert not convex_bound(5, 0.1, 1.1, 1.0, 4.0).holds


@settings(max_examples=80, deadline=None)
@given(p=st.integers(1, 20), share=st.floats(0.05, 1.0), beta=st.floats(0.05, 1.0), mu=st.floats(0.2, 1.0))
def test_fixed_point_is_where_the_recursion_ends(p, share, beta, mu):
    if beta / p >= 0.99:
        return
    bound = convex_bound(p, share * convex_lr_bound(p, beta, mu, 1.0), beta, mu, 1.0)
    assert bound.holds
    if bound.radius < 0.999:
        s = bound.fixed_point
        np.testing.assert_allclose(bound.matrix @ s + bound.noise, s, atol=1e-12)
        np.testing.assert_allclose(bound.after(40_000 if bound.radius > 0.99 else 4000, (9.0, 9.0, 9.0)), s, rtol=1e-6)


def test_equal_curvatures_bound_the_exact_second_moments():
    # μ = L = h: a quadratic. The exact (a, b, c) of synchronous EASGD stay under the recursion for every t.
    p, eta, beta, h, sigma = 4, 0.4, 0.8, 1.5, 1.2
    bound = convex_bound(p, eta, beta, h, h, sigma)
    assert bound.holds
    assert bound.monotone
    alpha = beta / p
    M = np.diag([1 - alpha - eta * h] * p + [1 - beta])
    M[:p, p] = M[p, :p] = alpha
    second = np.outer(np.full(p + 1, 2.0), np.full(p + 1, 2.0))
    noise, start = np.diag([eta**2 * sigma**2] * p + [0.0]), np.full(3, 4.0)
    for t in range(1, 60):
        second = M @ second @ M.T + noise
        a, b, c = second[:p, :p].mean(), np.diag(second)[:p].mean(), second[p, p]
        assert (np.array([a, b, c]) <= bound.after(t, start) + 1e-12).all()


def test_a_negative_corner_is_reported():
    # small μ/L and the largest η: γ₂ → 2ηL = 4(1 − α), so the corner is negative and the recursion need not contract
    bound = convex_bound(10, convex_lr_bound(10, 0.5, 1e-4, 1.0), 0.5, 1e-4, 1.0)
    assert bound.holds
    assert not bound.monotone
    assert not bound.converges
    assert (bound.fixed_point == math.inf).all()


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: convex_bound(3, 0.1, 0.5, mu=2.0, L=1.0), "must not exceed L"),
        (lambda: convex_bound(3, 0.1, 0.5, mu=0.0, L=1.0), "mu = 0.0"),
        (lambda: convex_bound(0, 0.1, 0.5, mu=1.0, L=1.0), "workers = 0"),
        (lambda: convex_bound(3, 0.1, 0.5, 1.0, 1.0).after(2, (1.0, 2.0)), "three numbers"),
    ],
)
def test_bad_input_is_one_clear_line(call, words):
    with pytest.raises(ValueError, match=words):
        call()
