"""The benchmark `chaos`: which kills there are, and what counts as a step that was not lost."""

import runpy

import pytest

from easgd.bench.chaos.measure import kills, reached_by_easgd
from easgd.bench.faults import measure as faults
from easgd.cli import main


def test_kills_are_seeded_and_as_many_as_the_rate_says():
    plan = kills(6.0, 6000.0, 3, seed=1)
    assert plan == kills(6.0, 6000.0, 3, seed=1) != kills(6.0, 6000.0, 3, seed=2)
    assert 500 < len(plan) < 700  # 600 in the mean, 25 standard deviation
    assert {rank for _, rank in plan} == {0, 1, 2}
    assert [moment for moment, _ in plan] == sorted(moment for moment, _ in plan)


def test_steps_of_all_incarnations_count_as_far_as_they_were_exchanged(tmp_path):
    for name, text in (("0-0", "          90"), ("0-1", "          40"), ("1-0", "         -10"), ("1-1", "")):
        (tmp_path / f"reached-{name}").write_text(text)
    assert reached_by_easgd(tmp_path, 2) == 130


def test_options_of_another_benchmark_are_refused(capsys):
    assert main(["bench", "chaos", "--steps", "3"]) == 2
    assert "--steps = 3: only `easgd bench worth` takes it" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_killed_workers_cost_little(capsys):
    assert main(["bench", "chaos", "--seconds", "20", "--json"]) == 0
    assert "EASGD" in capsys.readouterr().out


def test_the_rows_of_faults_name_cases_that_the_table_has():
    """What `easgd bench faults` prints must find its line in docs/faults.md."""
    import re
    from pathlib import Path

    source = Path(faults.__file__).read_text()
    engines = {"{engine}": ("local", "ray"), "ray": ("ray",)}
    found = {(number, name) for number, engine in re.findall(r'f?"(\d+) (\{engine\}|ray): ', source)
             for name in engines[engine]}  # fmt: skip
    assert len(found) >= 13
    tool = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "fault_figures.py"))
    table = tool["TABLE"].read_text()
    assert tool["filled"](table, dict.fromkeys(found, "1 s")).count("| 1 s |") == len(found)
