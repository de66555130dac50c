"""The paper's matrices as printed, and the same maps by running the paper's updates."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from easgd.theory import admm_map, admm_radius, admm_turn, easgd_map, easgd_radius, easgd_turn, sync_map
from easgd.theory.linear import CHUNK_BYTES, spectral_radius

unit = st.floats(0.0, 1.0)


def test_admm_turn_is_the_printed_one():
    # p = 2, i = 1, η = 0.5, ρ = 2: ηρ = 1, 1 + ηρ = 2, so F₂'s row is (1/2, 1/4, 0, 0, 1/2).
    F1, F2, F3 = admm_turn(0, 2, lr=0.5, rho=2.0)
    expected1, expected2, expected3 = np.eye(5), np.eye(5), np.eye(5)
    expected1[0] = [1, -1, 0, 0, 1]
    expected2[1] = [0.5, 0.25, 0, 0, 0.5]
    expected3[4] = [-0.5, 0.5, -0.5, 0.5, 0]
    np.testing.assert_array_equal(F1, expected1)
    np.testing.assert_array_equal(F2, expected2)
    np.testing.assert_array_equal(F3, expected3)


def test_easgd_turns_are_the_printed_ones():
    np.testing.assert_allclose(easgd_turn(0, 2, 0.1, 0.2), [[0.7, 0, 0.2], [0, 1, 0], [0.2, 0, 0.8]], atol=1e-15)
    np.testing.assert_allclose(easgd_turn(1, 2, 0.1, 0.2), [[1, 0, 0], [0, 0.7, 0.2], [0, 0.2, 0.8]], atol=1e-15)


def test_sync_map_is_the_printed_one():
    # 1 − α − ηh = 1 − 0.2 − 0.3 = 0.5; 1 − pα = 0.6
    np.testing.assert_allclose(
        sync_map(2, 0.1, 0.2, h=3.0), [[0.5, 0, 0.2], [0, 0.5, 0.2], [0.2, 0.2, 0.6]], atol=1e-15
    )


def test_admm_map_runs_equations_6_to_8():
    p, eta, rho, h = 3, 0.2, 1.5, 0.7
    rng = np.random.default_rng(0)
    lam, x, center = rng.normal(size=p), rng.normal(size=p), 0.3
    state = np.append(np.stack([lam, x], 1).reshape(-1), center)
    for t in range(p):
        i = t % p
        lam[i] -= x[i] - center
        x[i] = (x[i] - eta * h * x[i] + eta * rho * (lam[i] + center)) / (1 + eta * rho)
        center = np.mean(x - lam)
    expected = np.append(np.stack([lam, x], 1).reshape(-1), center)
    np.testing.assert_allclose(admm_map(p, eta, rho, h) @ state, expected, atol=1e-14)


def test_easgd_map_runs_its_two_equations():
    p, eta, alpha = 4, 0.3, 0.2
    x, center = np.array([1.0, -2.0, 0.5, 3.0]), 0.7
    state = np.append(x, center)
    for i in range(p):
        x[i], center = x[i] - eta * x[i] - alpha * (x[i] - center), center + alpha * (x[i] - center)
    np.testing.assert_allclose(easgd_map(p, eta, alpha) @ state, np.append(x, center), atol=1e-14)


@settings(max_examples=40, deadline=None)
@given(p=st.integers(1, 7), eta=st.floats(0.01, 1.0), rho=st.floats(0.1, 10.0))
def test_radii_equal_those_of_the_composed_maps(p, eta, rho):
    assert admm_radius(p, eta, rho) == pytest.approx(float(spectral_radius(admm_map(p, eta, rho))), abs=1e-9)
    alpha = eta * rho
    assert easgd_radius(p, eta, alpha) == pytest.approx(float(spectral_radius(easgd_map(p, eta, alpha))), rel=1e-9)


@pytest.mark.parametrize("p", [1, 2, 3, 5, 8])
def test_easgd_radius_solves_its_characteristic_equation(p):
    # An eigenvector that grows by ν a turn has (ν^p − 1 + η + α)(ν − 1 + α) = α²; the cycle's eigenvalue is ν^p.
    eta, alpha = 0.3, 0.4
    coefficients = np.zeros(p + 2)
    coefficients[0], coefficients[1] = 1.0, -(1 - alpha)
    coefficients[p] -= 1 - eta - alpha
    coefficients[p + 1] += (1 - eta - alpha) * (1 - alpha) - alpha**2
    expected = np.abs(np.roots(coefficients)).max() ** p
    assert easgd_radius(p, eta, alpha) == pytest.approx(expected, abs=1e-9)


def test_one_worker_by_hand():
    # η = 0.5, α = 0.5: the matrix is [[0, .5], [.5, .5]], λ² − λ/2 − 1/4 = 0, λ = (1 + √5)/4.
    assert easgd_radius(1, 0.5, 0.5) == pytest.approx((1 + 5**0.5) / 4, abs=1e-12)


def test_the_papers_chaotic_setting_diverges():
    assert admm_radius(3, 0.001, 2.5) > 1
    assert admm_radius(8, 0.001, 2.5) > 1
    assert easgd_radius(3, 0.001, 0.001 * 2.5) < 1


def test_corner_cases():
    assert easgd_radius(4, 0.0, 0.0) == pytest.approx(1.0, abs=1e-12)  # nothing moves
    assert easgd_radius(4, 0.0, 0.3) == pytest.approx(1.0, abs=1e-12)  # only the common average stays
    assert easgd_radius(4, 0.5, 0.0) == pytest.approx(1.0, abs=1e-12)  # the center stays where it is
    assert easgd_radius(1, 3.0, 0.0) == pytest.approx(2.0, abs=1e-12)  # |1 − η|
    assert admm_radius(1, 0.0, 1.0) == pytest.approx(1.0, abs=1e-12)
    assert isinstance(admm_radius(3, 0.1, 0.1), float)
    assert isinstance(easgd_radius(3, 0.1, 0.1), float)


def test_a_grid_is_chunked_without_changing_a_number():
    lr, rho = np.linspace(1e-4, 1e-2, 150)[:, None], np.linspace(0.1, 10, 140)[None]
    assert lr.size * rho.size * 36 * 8 > CHUNK_BYTES  # more than one chunk
    done: list[int] = []
    grid = admm_radius(3, lr, rho, progress=done.append)
    assert grid.shape == (150, 140)
    assert sum(done) == grid.size
    assert len(done) > 1
    for i, j in [(0, 0), (149, 139), (77, 3)]:
        assert grid[i, j] == pytest.approx(admm_radius(3, float(lr[i, 0]), float(rho[0, j])), abs=1e-12)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: admm_radius(-1, 0.1, 1.0), "workers = -1"),
        (lambda: admm_radius(2.5, 0.1, 1.0), "whole number"),
        (lambda: easgd_radius(3, -0.1, 0.1), "lr = -0.1"),
        (lambda: easgd_radius(3, np.linspace(0, 1, 0), 0.1), "empty"),
        (lambda: easgd_radius(3, float("nan"), 0.1), "finite"),
        (lambda: easgd_turn(3, 3, 0.1, 0.1), "number workers from 0"),
        (lambda: admm_radius(3, "fast", 1.0), "must be a number"),
    ],
)
def test_bad_input_is_one_clear_line(call, words):
    with pytest.raises(ValueError, match=words) as error:
        call()
    assert "\n" not in str(error.value)
