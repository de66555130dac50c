"""The race's arithmetic: what is run, what a record means, what the tables say."""

from __future__ import annotations

import math

import pytest

from easgd.bench.link import network, race, summary, throughput
from easgd.bench.link.cases import OURS, RIVALS, TORCHFT, all_cases, case
from easgd.bench.link.contestant import Spec
from easgd.cli import main
from easgd.errors import SettingError
from easgd.methods import registry

POINTS = [[1.0, 10, 0.9], [2.0, 20, 0.5], [3.0, 30, 0.3]]


def record(**more):
    return {"points": [], "times": [], "taken": 30, "seconds": 3.0, "load": 0.5, **more}


def test_a_target_is_reached_between_two_points():
    assert summary.crossing(POINTS, 0.4) == pytest.approx((2.5, 25.0))
    assert summary.crossing(POINTS, 0.95) == (1.0, 10)
    assert summary.crossing(POINTS, 0.2) is None


def test_step_times_go_on_as_their_later_half():
    assert summary.seconds_of([5.0, 5.0, 1.0, 1.0], 2) == 10.0
    assert summary.seconds_of([5.0, 5.0, 1.0, 1.0], 10.5) == pytest.approx(12.0 + 6.5)


def test_times_of_synchronous_cases_are_composed():
    whole = Spec("gpt", "ddp", None, 30, 10, 9.0)
    short = Spec("gpt", "ddp", 100, 4, 1, 9.0, measured=False)
    records = {whole: record(points=POINTS), short: record(times=[1.0] * 4)}
    assert summary.time_to(records, "gpt", "ddp", None, 0.4) == summary.Time(2.5)
    assert summary.time_to(records, "gpt", "ddp", 100, 0.4) == summary.Time(25.0, composed=True)
    assert str(summary.time_to(records, "gpt", "ddp", None, 0.1)) == "> 3"
    assert str(summary.time_to(records, "gpt", "ddp", 10, 0.4)) == "–"


def test_the_table_names_the_first_of_each_link_and_compares_ddp_with_ours():
    ddp, ours = case("ddp"), case("easgd/period=10")
    records = {
        Spec("gpt", "ddp", None, 30, 10, 9.0): record(points=[[1.0, 10, 2.0]]),
        Spec("gpt", "ddp", 100, 4, 1, 9.0, measured=False): record(times=[2.0] * 4),
        Spec("gpt", ours.name, None, 30, 10, 9.0): record(points=[[2.0, 10, 2.0]]),
        Spec("gpt", ours.name, 100, 30, 10, 9.0): record(points=[[4.0, 10, 2.0]]),
    }
    lines = summary.table(records, "gpt", 2.0, [ddp, ours], [100, None]).splitlines()
    assert lines[2:] == [
        "| DDP | ~20 | **1** |",
        "| EASGD, τ = 10 | **4** | 2 |",
        "| *DDP over the best of ours* | 5 | 0.5 |",
    ]
    assert [row.ratio for row in summary.rows(records, [ddp, ours], [100, None]) if "EASGD" in row.case][:2] == [
        0.2,
        2.0,
    ]
    assert summary.figure(records, [ddp, ours], [100, None]).rows[0].panels[0].series[0].y == [20.0, 1.0]


def test_what_is_run():
    cases = [case(name) for name in ("alone", "easgd/period=10", "ddp", "eamsgd/period=10")]
    plan = race.plan(["gpt"], cases, [10, None])
    assert [(spec.case, spec.mbit, spec.measured) for spec in plan] == [
        ("alone", None, True),
        ("ddp", None, True),
        ("ddp", 10, False),
        ("easgd/period=10", None, True),
        ("easgd/period=10", 10, True),
    ], "Ray last; no EAMSGD without SGD"
    whole = race.plan(["gpt"], [case("ddp")], [10], whole=True)
    assert [(spec.mbit, spec.measured) for spec in whole] == [(10, True)]


def test_a_failed_run_is_repeated_and_a_done_one_is_not(tmp_path, monkeypatch):
    specs = race.plan(["gpt"], [case("ddp")], [10, None])
    outcomes = iter([record(), {"failed": "why", "load": 1.0}, record(times=[1.0])])
    done = []

    def run(lab, spec, both):
        done.append(spec)
        builtins = race.msgspec.to_builtins(spec)
        return {**builtins, **next(outcomes)}

    monkeypatch.setattr(race.runs, "run", run)
    monkeypatch.setattr(race, "Laboratory", Nothing)
    said = []
    assert list(race.run(specs, tmp_path / "race.jsonl", said.append)) == [specs[0]]
    assert any("failed: why" in line for line in said)
    assert list(race.run(specs, tmp_path / "race.jsonl", said.append)) == specs
    assert done == [*specs, specs[1]]
    race.run(specs, tmp_path / "race.jsonl", said.append)
    assert len(done) == 3
    race.run(race.plan(["gpt"], [case("ddp")], [10, None], limit=5.0), tmp_path / "race.jsonl", said.append)
    assert len(done) == 3, "a run that had more time does for one that may have less"
    with pytest.raises(StopIteration):
        race.run(race.plan(["gpt"], [case("ddp")], [None], limit=500.0), tmp_path / "race.jsonl", said.append)


def test_of_two_runs_the_one_with_more_time_counts():
    long, short = (Spec("gpt", "diloco/period=50", 10, 30, 10, limit) for limit in (9.0, 4.0))
    records = {long: record(points=POINTS), short: record(points=POINTS[:1])}
    assert summary.time_to(records, "gpt", "diloco/period=50", 10, 0.4) == summary.Time(2.5)
    assert [one.name for one in summary.taking_part(records)] == ["diloco/period=50"]


def test_nobody_is_first_while_another_may_still_be():
    points = [[1.0, 10, 0.9], [5.0, 50, 0.4]]
    records = {
        Spec("gpt", "ddp", None, 90, 10, 9.0): record(points=points),
        Spec("gpt", "alone", None, 90, 10, 3.0): {**record(points=points[:1]), "seconds": 3.0},
    }
    lines = summary.table(records, "gpt", 0.4, summary.taking_part(records), (None,)).splitlines()
    assert lines[2:4] == ["| one process alone | > 3 |", "| DDP | 5 |"]
    records[Spec("gpt", "alone", None, 90, 10, 8.0)] = {**record(points=points[:1]), "seconds": 8.0}
    lines = summary.table(records, "gpt", 0.4, summary.taking_part(records), (None,)).splitlines()
    assert lines[2:4] == ["| one process alone | > 8 |", "| DDP | **5** |"]


class Nothing:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def test_rates_are_those_of_whole_cycles():
    one = case("easgd/period=2")
    assert throughput.rate([9.0, 9.0, 1.0, 3.0, 7.0], one, 8) == 8 * 2 / 4.0
    assert throughput.rate([1.0, 3.0, 7.0], one, 8) == 8 * 2 / 4.0
    assert throughput.rate([9.0, 9.0, 5.0, 1.0], case("ddp-powersgd"), 8) == 8.0, "two whole gradients, a warm-up"


def test_time_in_exchanges_is_that_of_whole_cycles_of_both_workers():
    one = case("easgd/period=2")
    first = {"times": [9.0, 9.0, 1.0, 3.0, 7.0], "exchanging": [8.0, 8.0, 0.0, 1.0, 6.0]}
    other = {"times": [9.0, 9.0, 2.0, 4.0], "exchanging": [8.0, 8.0, 0.5, 0.5]}
    assert throughput.in_exchange({**first, "other": other}, one) == (1.0 + 1.0) / (4.0 + 6.0)
    assert throughput.in_exchange({"times": [1.0, 1.0], "other": None}, one) is None
    table = throughput.markdown(
        {Spec("mlp", "alone", None, 9, 9, 9.0): {"times": [1.0, 1.0]},
         Spec("mlp", one.name, 10, 9, 9, 9.0): {**first, "other": other}}, [case("alone"), one], (10,),
    )  # fmt: skip
    assert table.splitlines()[2:] == ["| one process alone | 128 (0 %) |", "| EASGD, τ = 2 | 53 (58 %; 20.0 %) |"]


def test_steps_that_cost_more_are_not_taken_for_the_others():
    cases = [case(name) for name in ("ddp", "ddp-powersgd", "post-local", "eamsgd/period=50")]
    assert [(one.head, one.cycle, one.least) for one in cases] == [(0, 1, 2), (2, 1, 4), (2, 10, 12), (0, 50, 50)]
    times = [5.0, 5.0, *[1.0] * 7, 3.0, 1.0, 1.0]
    assert summary.seconds_of(times, 22, 10) == pytest.approx(sum(times) + 10 * 1.2)


def test_a_page_shows_every_link_that_has_records():
    """A race on one link must not drop from the page what was raced on the others before."""
    speeds = (None, 1000.0, 10.0, None)
    assert summary.links({Spec("gpt", "ddp", mbit, 30, 10, 9.0 + k): record() for k, mbit in enumerate(speeds)}) == [
        10.0, 1000.0, None,
    ]  # fmt: skip
    assert summary.links({}) == []


def test_methods_come_from_the_registry():
    names = [one.name for one in all_cases()]
    assert set(RIVALS) - {TORCHFT} < set(names), "torchft takes part where it is installed"
    assert all((name in names) or name.split("/")[0] not in registry.names() or "auto" in name for name in OURS)
    one = case("eamsgd/period=50/compression=int8")
    assert (one.title, one.momentum, one.compression) == ("EAMSGD, τ = 50, int8", 0.9, "int8")
    with pytest.raises(SettingError, match="unknown case 'eagsd'"):
        case("eagsd/period=3")


@pytest.mark.parametrize(
    ("words", "why"),
    [(["--jobs", "vgg"], "unknown job"), (["--cases", "nothing"], "unknown case"), (["--throughput"], "one at a time"),
     (["--mbit", "-1"], "--mbit")],
)  # fmt: skip
def test_bad_options_are_told_in_one_line(monkeypatch, capsys, words, why):
    monkeypatch.setattr("easgd.cli.bench_link.missing", lambda: None)
    assert main(["bench", "link", "--race", *words]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert why in line


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(network.missing() is not None, reason=str(network.missing()))
def test_a_race_of_a_few_steps(tmp_path):
    """Slow for its processes: every case of one job, on one link."""
    specs = race.plan(["gpt"], all_cases(), [1000], steps=4, limit=60)
    found = race.run(specs, tmp_path / "race.jsonl", print)
    assert list(found) == specs
    for spec, record in found.items():
        assert record["taken"] == spec.steps
        assert all(math.isfinite(point[2]) for point in record["points"])
    assert "character GPT" in summary.write(found, all_cases(), [1000], tmp_path)
    assert (tmp_path / "race.png").exists()
