"""Lemma 1 and its corollary against the full (p + 1)-dimensional recursion, the printed formula and Monte-Carlo."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easgd.theory import center_moments, center_mse, mse_limit, roots, sgd_variance, sync_map, sync_stable


def by_recursion(t, p, eta, beta, h=1.0, sigma=1.0, center=1.0, x=1.0):
    """Mean and covariance of all p + 1 variables, step by step."""
    M = sync_map(p, eta, beta / p, h)
    mean = np.append(np.broadcast_to(x, p), center)
    cov = np.zeros((p + 1, p + 1))
    noise = np.diag([eta**2 * sigma**2] * p + [0.0])
    for _ in range(t):
        mean, cov = M @ mean, M @ cov @ M.T + noise
    return mean[-1], cov[-1, -1]


def as_printed(t, p, eta, beta, h=1.0, sigma=1.0, center=1.0, x=1.0):
    """Equations (lem1a) and (lem1b), letter by letter."""
    alpha = beta / p
    a, c2 = eta * h + (p + 1) * alpha, eta * h * p * alpha
    gamma, phi = 1 - (a - math.sqrt(a * a - 4 * c2)) / 2, 1 - (a + math.sqrt(a * a - 4 * c2)) / 2
    u0 = p * (x - alpha / (1 - p * alpha - phi) * center)
    mean = gamma**t * center + (gamma**t - phi**t) / (gamma - phi) * alpha * u0
    sums = (
        (gamma**2 - gamma ** (2 * t)) / (1 - gamma**2)
        + (phi**2 - phi ** (2 * t)) / (1 - phi**2)
        - 2 * (gamma * phi - (gamma * phi) ** t) / (1 - gamma * phi)
    )
    return mean, (p * alpha * eta / (gamma - phi)) ** 2 * sums * sigma**2 / p


def test_three_steps_by_hand():
    # p = 1, η = 1/2, β = α = 1/2, h = σ = 1, start (x, x̃) = (2, 1):
    # x₁ = 2 − 1 − ½(2 − 1) = 0.5 (+ ½ξ₀), x̃₁ = 1 + ½ = 1.5, no noise yet;
    # x̃₂ = ½·0.5 + ½·1.5 = 1.0, variance (½·½)² = 1/16.
    assert center_moments(0, 1, 0.5, 0.5, center=1.0, x=2.0) == (1.0, 0.0)
    assert center_moments(1, 1, 0.5, 0.5, center=1.0, x=2.0) == (1.5, 0.0)
    assert center_moments(2, 1, 0.5, 0.5, center=1.0, x=2.0) == (1.0, 1 / 16)


@settings(max_examples=150, deadline=None)
@given(
    t=st.integers(0, 60),
    p=st.integers(1, 6),
    eta=st.floats(0.0, 2.5),
    beta=st.floats(0.0, 2.5),
    h=st.floats(0.1, 2.0),
    sigma=st.floats(0.0, 5.0),
    center=st.floats(-3, 3),
    x=st.floats(-3, 3),
)
def test_moments_equal_the_full_recursion(t, p, eta, beta, h, sigma, center, x):
    ours = center_moments(t, p, eta, beta, h, sigma, center, x)
    theirs = by_recursion(t, p, eta, beta, h, sigma, center, x)
    # unstable settings grow to 1e40 within 60 steps: relative to the largest power then
    size = max(1.0, np.abs(np.linalg.eigvalsh(sync_map(p, eta, beta / p, h))).max() ** t)
    assert ours[0] == pytest.approx(theirs[0], rel=1e-9, abs=1e-9 * size)
    assert ours[1] == pytest.approx(theirs[1], rel=1e-9, abs=1e-9)


@settings(max_examples=100, deadline=None)
@given(t=st.integers(0, 200), p=st.integers(1, 100), eta=st.floats(0.05, 1.5), beta=st.floats(0.05, 1.0))
def test_printed_formula_is_right_for_every_t(t, p, eta, beta):
    if not sync_stable(p, eta, beta):
        return
    mean, variance = center_moments(t, p, eta, beta, 1.0, 2.0, 1.5, -0.5)
    printed = as_printed(t, p, eta, beta, 1.0, 2.0, 1.5, -0.5)
    # the printed form divides by (γ − φ)², so it is the less exact of the two
    assert mean == pytest.approx(printed[0], abs=1e-9)
    assert variance == pytest.approx(printed[1], abs=1e-9)


def test_workers_may_start_apart():
    x = np.array([1.0, -2.0, 4.0])
    expected = by_recursion(7, 3, 0.2, 0.6, x=x)
    assert center_moments(7, 3, 0.2, 0.6, x=x.mean()) == pytest.approx(expected, abs=1e-12)


def test_infinity_is_the_limit_of_many_steps():
    for p, eta, beta in [(1, 0.3, 0.5), (4, 0.1, 0.9), (100, 1.2, 1.3), (10**4, 0.5, 0.5)]:
        mean, variance = center_moments(math.inf, p, eta, beta)
        assert mean == 0.0
        assert variance == pytest.approx(center_moments(10**6, p, eta, beta)[1], rel=1e-9)


def test_equal_roots():
    # φ = γ only at ηh = α = 0, but p → ∞ with ηh = β comes as near as one likes: (γ − φ)² ≈ 4αηh = 1e-14.
    gamma, phi = roots(10**14, 0.5, 0.5)
    assert 0 < gamma - phi < 2e-7
    _, variance = center_moments(50, 10**14, 0.5, 0.5)
    # γ = φ = ½: Σ_{j<50} j² (¼)^{j−1} · (βη)² σ²/p
    expected = sum(j**2 * 0.25 ** (j - 1) for j in range(1, 50)) * (0.25**2) * 1e-14
    assert variance == pytest.approx(expected, rel=1e-6)
    assert roots(3, 0.0, 0.0) == (1.0, 1.0)
    assert center_moments(9, 3, 0.0, 0.0, center=2.0, x=5.0) == (2.0, 0.0)


def test_roots_are_those_of_the_polynomial():
    p, eta, beta, h = 5, 0.3, 0.8, 1.7
    a, c2 = eta * h + (p + 1) * beta / p, eta * h * beta
    expected = np.sort(np.roots([1, -(2 - a), 1 - a + c2]))
    assert roots(p, eta, beta, h) == pytest.approx((expected[1], expected[0]), abs=1e-12)


def test_unstable_settings_have_infinite_variance():
    mean, variance = center_moments(math.inf, 4, 2.5, 0.9)
    assert variance == math.inf
    assert mean == math.inf
    assert center_moments(math.inf, 1, 0.5, 1.9)[1] == math.inf
    assert center_moments(10**7, 4, 2.5, 0.9)[1] == math.inf  # overflow is not nan
    assert center_moments(math.inf, 4, 2.5, 0.9, center=0.0, x=0.0) == (0.0, math.inf)
    assert center_moments(math.inf, 4, 2.5, 0.9, sigma=0.0)[1] == 0.0


def test_no_spring_and_no_step():
    assert center_moments(math.inf, 4, 0.5, 0.0, center=3.0, x=1.0) == (3.0, 0.0)  # α = 0: the center is never told
    assert center_moments(100, 4, 5.0, 0.0, center=3.0, x=1.0) == (3.0, 0.0)
    # η = 0: everybody meets at the common average (4·1 + 6)/5
    assert center_moments(math.inf, 4, 0.0, 0.5, center=6.0, x=1.0) == pytest.approx((2.0, 0.0))
    assert center_moments(10**4, 4, 0.0, 0.5, center=6.0, x=1.0) == pytest.approx((2.0, 0.0))
    assert math.isnan(center_moments(math.inf, 1, 0.0, 1.0, center=1.0, x=0.0)[0])  # swaps places for ever


def test_corollary_is_the_limit_over_p():
    for eta, beta, h, sigma in [(0.5, 0.9, 1.0, 1.0), (0.1, 0.3, 2.0, 10.0), (1.5, 1.2, 1.0, 0.5)]:
        p = 10**9
        exact = p * center_mse(math.inf, p, eta, beta, h, sigma)
        assert mse_limit(eta, beta, h, sigma) == pytest.approx(exact, rel=1e-6)
    # ηh = β = 1: 1/(1·1) · (2 − 1 − 1 + 1)/(1 + 1 − 1) = 1
    assert mse_limit(1.0, 1.0) == pytest.approx(1.0)
    assert mse_limit(2.0, 1.0) == math.inf
    assert mse_limit(1.0, 2.0) == math.inf


def test_the_smaller_beta_the_smaller_the_limit():
    for eta in (0.02, 0.5, 1.0, 1.5, 1.95):
        limits = [mse_limit(eta, float(beta)) for beta in np.linspace(0.01, 1.99, 100)]
        assert limits == sorted(limits)


def test_sgd_variance():
    assert sgd_variance(1.0) == 1.0  # x ← ξ
    assert sgd_variance(0.5, h=2.0, sigma=3.0) == pytest.approx(0.5 * 9 / (2 * 1))
    assert sgd_variance(2.0) == math.inf


def test_arrays_broadcast_and_grids_match_points():
    eta, beta = np.linspace(0.1, 2.5, 5)[:, None], np.linspace(0.1, 1.9, 4)[None]
    for t in (0, 3, math.inf):
        grid = center_mse(t, 10, eta, beta, 1.0, 10.0)
        assert grid.shape == (5, 4)
        assert grid[2, 1] == pytest.approx(center_mse(t, 10, float(eta[2, 0]), float(beta[0, 1]), 1.0, 10.0))
    assert all(isinstance(value, float) for value in center_moments(3, 4, 0.1, 0.9))


def test_monte_carlo_of_the_update_rule():
    # Equations 3-4 of the paper, vectorised over samples; agreement within 4 standard errors.
    p, eta, beta, h, sigma, t, samples = 3, 0.3, 0.9, 1.2, 2.0, 25, 40_000
    rng = np.random.default_rng(7)
    x, center = np.full((samples, p), 1.5), np.full(samples, -0.5)
    for _ in range(t):
        gradient = h * x - sigma * rng.standard_normal((samples, p))
        x, center = x - eta * gradient - beta / p * (x - center[:, None]), (1 - beta) * center + beta * x.mean(1)
    mean, variance = center_moments(t, p, eta, beta, h, sigma, center=-0.5, x=1.5)
    assert abs(center.mean() - mean) < 4 * math.sqrt(variance / samples)
    assert abs(center.var() / variance - 1) < 4 * math.sqrt(2 / samples)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: center_moments(-1, 2, 0.1, 0.9), "t = -1"),
        (lambda: center_moments(1.5, 2, 0.1, 0.9), "t = 1.5"),
        (lambda: center_moments(1, 0, 0.1, 0.9), "workers = 0"),
        (lambda: center_moments(1, 2, -0.1, 0.9), "lr = -0.1"),
        (lambda: center_moments(1, 2, 0.1, -0.9), "beta = -0.9"),
        (lambda: center_moments(1, 2, 0.1, 0.9, h=0.0), "h = 0.0"),
        (lambda: center_moments(1, 2, 0.1, 0.9, sigma=-1.0), "sigma = -1.0"),
    ],
)
def test_bad_input_is_one_clear_line(call, words):
    with pytest.raises(ValueError, match=words) as error:
        call()
    assert "\n" not in str(error.value)
