"""Speed-ups of pairs of learning rates, from run folders whose numbers are written by hand."""

from __future__ import annotations

import json
import math

import pytest

from easgd.cli import main
from easgd.experiments.paper import pairs
from easgd.experiments.paper.repeated import Repeated, repeated
from easgd.report.data import build
from easgd.report.style import Look
from measured_runs import write_run

FAST = (0.9, 0.3, 0.2, 0.2, 0.3, 0.2, 0.2, 0.2, 0.2)
SLOW = (0.9, 0.8, 0.7, 0.5, 0.4, 0.3, 0.2, 0.2, 0.15)
NEVER = (0.9, 0.8, 0.7, 0.6, 0.5, 0.5, 0.5, 0.5, 0.5)
WORKERS = (0.9, 0.2, 0.2, 0.2)


@pytest.fixture
def runs(tmp_path):
    """MSGD at three rates, and four workers; an evaluation every virtual second."""
    folder = tmp_path / "runs"
    for lr, errors in ((0.05, FAST), (0.01, SLOW), (0.001, NEVER)):
        write_run(folder / f"msgd-{lr}", errors, method="msgd", lr=lr)
    write_run(folder / "four", WORKERS, method="eamsgd", workers=4, lr=0.1)
    write_run(folder / "strong", WORKERS, method="eamsgd", workers=16, lr=0.1, moving_rate=0.5)
    return folder


@pytest.fixture
def known(runs):
    model = build([runs], [0.3, 0.2], None, every=True)
    return {one.name: one for one in repeated(model.entries)}


def test_a_time_is_the_first_of_three_in_a_row(known):
    """At 2 s and 3 s the fast one is at 20 %, and above it at 4 s; from 5 s on it stays there."""
    assert known["MSGD, η = 0.05"].time_to(0.2) == 5.0
    assert known["EAMSGD p = 4, η = 0.1"].time_to(0.2) == 1.0


def test_one_or_two_at_the_end_of_a_run_do_not_count(known):
    assert known["MSGD, η = 0.01"].time_to(0.2) == 6.0
    assert math.isinf(known["MSGD, η = 0.01"].time_to(0.15))
    assert math.isinf(known["MSGD, η = 0.001"].time_to(0.2))


def test_pairs_by_hand(known):
    four = known["EAMSGD p = 4, η = 0.1"]
    gains = [pairs.sooner(four, known[f"MSGD, η = {lr}"], 0.2) for lr in (0.05, 0.01, 0.001)]
    assert gains == [(5.0, "5.0×"), (6.0, "6.0×"), (8.0, "> 8.0×")]
    assert pairs.sooner(known["MSGD, η = 0.001"], four, 0.2) == (None, "–")


def test_the_rule_takes_the_smallest_error_within_the_budget(known, monkeypatch):
    """Within 5 s the fast rate is better, within 8 s the slow one; a spring of its own is not the paper's."""
    monkeypatch.setattr(pairs, "BUDGETS", (5.0, 8.0))
    alone = [known[f"MSGD, η = {lr}"] for lr in (0.05, 0.01, 0.001)]
    many = known["EAMSGD p = 16, η = 0.1, α = 0.5"]
    assert pairs.rule([known["EAMSGD p = 4, η = 0.1"]], alone, 0.2).rows == []
    table = pairs.rule([many], alone, 0.2)
    assert [name for _, name in table.columns[3:]] == ["EAMSGD p = 16, any α", "its time [s]", "sooner"]
    assert [[text for _, text in row] for row in table.rows] == [
        ["5", "η = 0.05 (20.0 %)", "5", "η = 0.1, α = 0.5 (20.0 %, watched 3 s)", "1", "5.0×"],
        ["8", "η = 0.01 (15.0 %)", "6", "η = 0.1, α = 0.5 (20.0 %, watched 3 s)", "1", "6.0×"],
    ]
    monkeypatch.setattr(Repeated, "papers", True)
    assert [name for _, name in pairs.rule([many], alone, 0.2).columns[3::3]] == [
        "EAMSGD p = 16, α = 0.9/p", "EAMSGD p = 16, any α",
    ]  # fmt: skip


def test_the_figure_is_drawn_at_the_level_that_tells_most(known):
    """At 15 % nobody is; at 20 and 30 % two of MSGD's rates and the workers are, and 20 % is harder."""
    parallel = [known["EAMSGD p = 4, η = 0.1"]]
    alone = [known[f"MSGD, η = {lr}"] for lr in (0.05, 0.01, 0.001)]
    assert pairs.telling([0.3, 0.2, 0.15], parallel, alone) == 0.2
    # Another side may have a say: this rate of MSGD is never below 50 %.
    assert pairs.telling([0.5, 0.2], parallel, alone) == 0.2
    assert pairs.telling([0.5, 0.2], parallel, alone, [known["MSGD, η = 0.001"]]) == 0.5


def test_bars_leave_no_gap_for_a_run_that_was_never_there(known):
    """Two runs, of which one is at 20 %: one bar in the middle of each rate's place."""
    one, other = known["EAMSGD p = 4, η = 0.1"], known["MSGD, η = 0.001"]
    look = Look("C0", ())
    (bars,) = pairs._bars([other, one], [known["MSGD, η = 0.05"]], [look, look], 0.2).series
    assert (bars.label, list(bars.x)) == (one.name, [0.0])


def test_a_level_that_was_met_once_is_said(known):
    """The slow one is at 15 % at its end, once; nothing was at 10 %."""
    table = pairs.times([known["MSGD, η = 0.01"]], [0.2, 0.15, 0.1])
    assert [text for _, text in table.rows[0]] == ["MSGD, η = 0.01", "1", "6", "> 8 (once at 8)", "> 8", "15.00 %"]


def test_on_one_interval_all_have_the_same_chances(known):
    """Every 2 s the slow one is seen at 0, 2, 4, 6, 8 s, at 70, 40, 20 and 15 %: at 40 % from the fourth second on."""
    slow = known["MSGD, η = 0.01"]
    assert [slow.time_to(0.4), slow.time_to(0.4, every=2.0)] == [4.0, 4.0]
    assert [slow.time_to(0.5), slow.time_to(0.5, every=2.0)] == [3.0, 4.0]
    table = pairs.alike(list(known.values()), [0.4, 0.2])
    assert "every 1 s" in table.title
    assert {row[0][1]: [text for _, text in row[1:]] for row in table.rows}["MSGD, η = 0.01"] == ["4", "6"]


def test_drawn_again_from_what_was_committed(runs, tmp_path, capsys):
    """Twice: the second time in place, from the runs beside the figure, whose revisions the page still knows."""
    command = ["paper", "pairs", "--out", str(tmp_path / "out")]
    assert main([*command, "--measured", str(runs)]) == 0
    folder = tmp_path / "out" / "pairs"
    facts = json.loads((folder / "about.json").read_text())
    facts["runs"]["four"]["revision"] = "0123456789ab"
    (folder / "about.json").write_text(json.dumps(facts))
    first = (folder / "pairs.csv").read_text()
    roundabout = folder / ".." / "pairs" / "runs"  # the same place by another name: its runs must not be removed
    assert main([*command, "--measured", str(roundabout)]) == 0
    assert (folder / "pairs.csv").read_text() == first
    page = (folder / "README.md").read_text()
    assert "EAMSGD p = 4, η = 0.1 | 5.0× | 6.0× | > 8.0× |" in page
    assert "0123456789ab" in page
    assert (folder / "runs" / "four" / "evaluations.jsonl").exists()
    capsys.readouterr()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["pairs", "--measured", "nowhere"], "measured = nowhere"),
        (["fig1", "--measured", "nowhere"], "it has no runs"),
        (["fig2", "pairs", "--measured", "nowhere"], "--measured draws one recipe, not 2"),
        (["pairs", "--measured", "nowhere", "--photos", "mine"], "leave out --photos"),
    ],
)
def test_bad_input_is_one_line(argv, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["paper", *argv]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
