"""Lemmas 2 and 3."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easgd.theory import (
    double_average_covariance,
    double_average_error,
    double_average_holds,
    double_average_variance,
    sync_map,
)


def positive_definite(rng, n):
    root = rng.normal(size=(n, n))
    return root @ root.T + 0.1 * np.eye(n)


def test_one_dimension_is_sigma_over_h_squared():
    np.testing.assert_allclose(double_average_covariance(2.0, 9.0), [[9 / 4]])


@settings(max_examples=50, deadline=None)
@given(n=st.integers(1, 6), seed=st.integers(0, 1000))
def test_covariance_of_any_positive_definite_pair(n, seed):
    rng = np.random.default_rng(seed)
    A, Sigma = positive_definite(rng, n), positive_definite(rng, n)
    V = double_average_covariance(A, Sigma)
    np.testing.assert_allclose(A @ V @ A.T, Sigma, atol=1e-8 * np.abs(Sigma).max())
    np.testing.assert_allclose(V, V.T, rtol=1e-7, atol=1e-9 * np.abs(V).max())


def by_recursion(t, p, eta, beta, h, sigma):
    """Covariance of (x¹ … xᵖ, x̃, Σx̃) step by step."""
    M = np.zeros((p + 2, p + 2))
    M[: p + 1, : p + 1] = sync_map(p, eta, beta / p, h)
    M[p + 1, p], M[p + 1, p + 1] = 1.0, 1.0
    cov, noise = np.zeros_like(M), np.diag([eta**2 * sigma**2] * p + [0.0, 0.0])
    for _ in range(t):
        cov = M @ cov @ M.T + noise
    return cov[-1, -1] / t**2


def test_finite_time_variance_equals_the_recursion():
    for t in (1, 2, 3, 10, 57):
        ours = double_average_variance(t, 3, 0.3, 0.8, 1.4, 2.0)
        assert ours == pytest.approx(by_recursion(t, 3, 0.3, 0.8, 1.4, 2.0), rel=1e-9)
    # z_1 = x̃_0 and z_2 = (x̃_0 + x̃_1)/2 have seen no noise
    assert double_average_variance(2, 3, 0.3, 0.8) == 0.0


@pytest.mark.parametrize(("eta", "beta"), [(0.1, 0.9), (1.0, 0.1), (1.3, 0.5)])
def test_the_limit_does_not_depend_on_the_settings(eta, beta):
    p, h, sigma, t = 4, 1.3, 2.0, 10**7
    limit = double_average_covariance(h, sigma**2).item()
    assert t * p * double_average_variance(t, p, eta, beta, h, sigma) == pytest.approx(limit, rel=1e-4)


def test_unstable_average_is_infinite():
    assert double_average_variance(10**6, 4, 2.5, 0.9) == math.inf


def test_condition_is_that_of_the_largest_eigenvalue():
    A = np.diag([0.1, 3.0])
    assert double_average_holds(4, 0.5, 0.9, A)
    assert not double_average_holds(4, 0.7, 0.9, A)
    assert not double_average_holds(4, 0.0, 0.9, A)


def test_normalisation():
    np.testing.assert_allclose(double_average_error([0.5, -1.0], 4, 9), [3.0, -6.0])


@pytest.mark.parametrize(
    ("A", "Sigma", "words"),
    [
        ([[1.0, 2.0], [2.0, 1.0]], np.eye(2), "smallest eigenvalue of A = -1"),
        ([[1.0, 0.5], [0.0, 1.0]], np.eye(2), "A = not symmetric"),
        ([[1.0, 0.5]], np.eye(2), "must be square"),
        (np.eye(2), np.eye(3), "must be A's"),
        (np.eye(2), np.zeros((2, 2)), "smallest eigenvalue of Sigma"),
    ],
)
def test_matrices_that_will_not_do(A, Sigma, words):
    with pytest.raises(ValueError, match=words) as error:
        double_average_covariance(A, Sigma)
    assert "\n" not in str(error.value)
