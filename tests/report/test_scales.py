"""Axes that show the ends of the curves, where methods differ."""

import pytest

from easgd.report.data import build
from easgd.report.scales import bounds, is_log, limits, ticks
from folders import write_run


def lines(folder, **runs):
    for name, errors in runs.items():
        write_run(folder / name, errors=errors, method=name, records=[])
    return build([folder]).lines


def test_a_range_like_the_papers_is_linear_and_a_wide_one_is_not(tmp_path):
    assert not is_log(lines(tmp_path / "cifar", msgd=(0.9, 0.5, 0.3, 0.2)))
    wide = lines(tmp_path / "digits", msgd=(0.9, 0.5, 0.3, 0.02))
    assert is_log(wide)
    assert not is_log(wide, "linear")


def test_what_diverges_does_not_set_the_axis(tmp_path):
    found = lines(tmp_path, msgd=(0.8, 0.5, 0.3, 0.2), easgd=(0.8, 7.0, 1e9, float("nan")))
    assert bounds(found, "test_error") == (0.2, pytest.approx(1.15 * 0.8))
    low, high = limits(found, "test_error", log=False)
    assert 0 <= low < 0.2
    assert 0.92 < high < 1


def test_an_error_of_zero_has_a_place_on_a_logarithmic_axis(tmp_path):
    found = lines(tmp_path, msgd=(0.9, 0.1, 0.0, 0.0))
    low, high = limits(found, "test_error", log=True)
    assert 0 < low < high


def test_ticks_are_round():
    assert ticks(1.8, 95) == [2, 5, 10, 20, 50]
    assert ticks(1e-6, 3) == pytest.approx([1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1])
