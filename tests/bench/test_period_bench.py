"""A shorter `easgd bench period`: a period that sets itself is as good as the best, and unequal workers gain by it."""

import pytest

from easgd.bench.period import BANDWIDTHS, Job, bandwidth_row, unequal_rows

FAST, MIDDLE, SLOW = BANDWIDTHS


@pytest.mark.parametrize(
    ("bandwidth", "grid"),
    [
        (SLOW, (64,)),  # the best of the whole grid, in the table of docs/theory.md
        pytest.param(FAST, (1, 8, 32, 64), marks=pytest.mark.slow),
        pytest.param(MIDDLE, (1, 8, 32, 64), marks=pytest.mark.slow),
        pytest.param(SLOW, (1, 8, 32, 64, 128), marks=pytest.mark.slow),
    ],
)
def test_auto_is_within_five_per_cent_of_the_best_of_a_grid(bandwidth, grid):
    assert bandwidth_row(Job(), bandwidth, grid).ratio < 1.05


def test_unequal_workers_reach_the_target_twice_as_soon_as_in_rounds():
    sooner, final = unequal_rows(Job(size=20, flattest=3e-2, sigma=0.1))
    assert sooner.ratio < 0.5
    assert final.ratio < 1.1
