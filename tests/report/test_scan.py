"""One pass over the records: sums and binned means, against plain sums."""

import random

import pytest

from easgd.records import Event, Step, breakdown
from easgd.report.scan import BinnedMean, Scan
from folders import steps


def test_bins_keep_the_mean_while_time_outgrows_them():
    rng = random.Random(0)
    points = [(rng.random() * 4**i, rng.random()) for i in range(8) for _ in range(50)]
    series = BinnedMean(size=10)
    for time, value in points:
        series.add(time, value)
    times, means = series.points()
    assert len(times) <= 10
    assert times == sorted(times)
    assert max(times) < series.width * 10
    for time, mean in zip(times, means, strict=True):
        inside = [v for t, v in points if abs(t - time) <= series.width / 2]
        assert mean == pytest.approx(sum(inside) / len(inside))


def test_what_is_not_finite_is_left_out():
    series = BinnedMean()
    for value in (float("nan"), float("inf"), 2.0):
        series.add(1.0, value)
    assert series.points()[1] == [2.0]


def test_a_scan_adds_up_to_the_breakdown():
    lines = [Step(**{k: v for k, v in s.items() if k != "event"}) for worker in (0, 1) for s in steps(worker)]
    scan = Scan([*lines, Event("death", 3.0, 1, "killed"), Event("join", 1.0, 2)])
    assert scan.breakdown == breakdown(lines)
    assert scan.breakdown.compute == pytest.approx(6.0)  # 20 steps of 0.3 s
    assert scan.breakdown.communication == pytest.approx(3.0)  # 0.1 s and 0.05 s waiting
    assert (scan.steps, scan.exchanges, scan.bytes) == (40, 8, 800)
    assert [event.event for event in scan.events] == ["join", "death"]
    assert set(scan.distance.points()[1]) == {2.0}
