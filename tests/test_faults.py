"""A plan of faults is data: read, checked, and refused in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

import easgd
from easgd.cli import main
from easgd.faults import Fault, as_data, check_plan, in_order, load_plan, plan_of
from easgd.records import Event

EXAMPLE = Path(__file__).parents[1] / "examples" / "faults.toml"


def test_the_example_has_every_kind_and_is_read_back_from_its_data():
    plan = load_plan(EXAMPLE)
    assert {fault.what for fault in plan} == {"death", "join", "pause", "slow", "restart"}
    assert plan_of(as_data(plan), "data") == plan
    check_plan(plan, 3, "local")


def test_a_restart_is_a_death_and_a_join():
    plan = [Fault(1, 2.0, "restart", 0.5), Fault(0, 1.0, "slow", 3.0)]
    assert in_order(plan) == [Fault(0, 1.0, "slow", 3.0), Fault(1, 2.0, "death"), Fault(1, 2.5, "join")]


BAD = {
    "unknown kind": ('[[fault]]\nworker = 0\ntime = 1\nwhat = "deth"', "death"),
    "no time": ('[[fault]]\nworker = 0\nwhat = "death"', "time = nothing: fault 1 of"),
    "unknown key": ('[[fault]]\nworker = 0\ntime = 1\nwhat = "death"\nwho = 3', "who"),
    "a text": ('[[fault]]\nworker = "x"\ntime = 1\nwhat = "death"', "worker = 'x'"),
    "negative": ('[[fault]]\nworker = 0\ntime = -1\nwhat = "death"', "time = -1"),
    "no such worker": ('[[fault]]\nworker = 9\ntime = 1\nwhat = "death"', "write a join"),
    "out of order": ('[[fault]]\nworker = 5\ntime = 1\nwhat = "join"', "in the order of their ranks"),
    "no faults": ("method = 3", "tables [[fault]]"),
    "no TOML": ("[[fault", "it is no TOML"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_plan_is_one_line_and_exit_code_2(name, tmp_path, capsys):
    text, words = BAD[name]
    (tmp_path / "plan.toml").write_text(text)
    line = ["train", "--workers", "2", "--faults", str(tmp_path / "plan.toml"), "--out", str(tmp_path / "run")]
    assert main(line) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_what_an_engine_cannot_do_is_refused(tmp_path, capsys):
    (tmp_path / "plan.toml").write_text('[[fault]]\nworker = 0\ntime = 1\nwhat = "pause"\namount = 1')
    assert main(["train", "--engine", "ray", "--faults", str(tmp_path / "plan.toml")]) == 2
    assert "fault = pause: the engine ray cannot do that to a worker" in capsys.readouterr().err
    with pytest.raises(easgd.SettingError, match="the engine ray cannot do that"):
        easgd.run(print, engine="ray", faults=[Fault(0, 1.0, "pause", 1.0)])


def test_the_simulator_carries_out_the_example(tmp_path):
    run = easgd.train(
        engine="simulate", network="digits-mlp", workers=3, seconds=20.0, faults=str(EXAMPLE), cost="unequal",
        out=tmp_path / "run", evaluate_every=10.0, history=True, lr=0.01, train_subset=100,
    )  # fmt: skip
    events = [(r.event, r.worker) for r in run.records() if isinstance(r, Event)]
    faults = [("death", 1), ("join", 1), ("join", 3), ("pause", 2), ("slow", 0), ("death", 2), ("join", 2)]
    assert [event for event in events if event[0] != "workers"] == faults
    assert main(["doctor", "--history", str(run.path)]) == 0
