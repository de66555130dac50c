"""Times and speed-ups over seeds, from run folders whose numbers are written by hand."""

from __future__ import annotations

import numpy as np
import pytest

from easgd.cli import main
from easgd.experiments.paper import seeds
from easgd.experiments.paper.repeated import repeated
from easgd.report.data import build
from measured_runs import write_run

ALONE = {
    0: (0.9, 0.8, 0.6, 0.4, 0.3, 0.3, 0.3, 0.3, 0.1),
    1: (0.9, 0.6, 0.5, 0.4, 0.4, 0.4, 0.3, 0.3, 0.3),
    2: (0.9, 0.8, 0.7, 0.6, 0.4, 0.4, 0.4, 0.3, 0.3),
}
FOUR = {0: (0.9, 0.4, 0.3, 0.3, 0.3), 1: (0.9, 0.6, 0.4, 0.3, 0.4)}


@pytest.fixture
def runs(tmp_path):
    """Three seeds of MSGD, two of EAMSGD, an evaluation every virtual second; seed 0 was allowed to train longer."""
    folder = tmp_path / "runs"
    for seed, errors in ALONE.items():
        write_run(folder / f"msgd-s{seed}", errors, method="msgd", seed=seed, seconds=100.0 if seed == 0 else 8.0)
    for seed, errors in FOUR.items():
        write_run(folder / f"four-s{seed}", errors, method="eamsgd", workers=4, seed=seed)
    return folder


@pytest.fixture
def known(runs):
    return {one.name.split(",")[0]: one for one in repeated(build([runs], [0.4, 0.3], None, every=True).entries)}


def test_seeds_are_one_group_whatever_their_budget(known):
    assert {name: [run.config.seed for run in one.runs] for name, one in known.items()} == {
        "MSGD": [0, 1, 2], "EAMSGD p = 4": [0, 1],
    }  # fmt: skip


def test_median_and_range_by_hand(known):
    """To 40 % MSGD takes 3, 3 and 4 s; to 30 % its third seed measured only twice, so it is not there yet."""
    assert known["MSGD"].times(0.4) == [3.0, 3.0, 4.0]
    (row, *_), levels = seeds.times(list(known.values()), [0.4, 0.3]).rows, slice(3, 5)
    assert row[levels] == [(3.0, "3 (3 to 4)"), (6.0, "6 (4 to > 8)")]


def test_speed_ups_by_hand(known):
    """Four workers take 1 and 2 s to 40 %: 3/1.5 by the medians, 3/2 at least and 4/1 at most."""
    (row,) = seeds.gains(list(known.values()), [0.4, 0.3]).rows
    assert row[2:] == [(2.0, "2.0× (1.5 to 4.0)"), (None, "–")]


def test_curves_go_as_far_as_all_seeds(known):
    time, errors = known["EAMSGD p = 4"].errors()
    assert time.tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(errors, [FOUR[0], FOUR[1]])


def test_the_figure_is_drawn_from_measurements(runs, tmp_path, capsys):
    assert main(["paper", "seeds", "--scale", "laptop", "--measured", str(runs), "--out", str(tmp_path / "out")]) == 0
    page = (tmp_path / "out" / "seeds" / "README.md").read_text()
    assert "3 (3 to 4)" in page
    assert "2.0× (1.5 to 4.0)" in page
    assert (tmp_path / "out" / "seeds" / "seeds.png").stat().st_size > 10_000
