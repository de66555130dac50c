"""Figures drawn from run folders whose numbers are written by hand, and from short real runs."""

from __future__ import annotations

import gzip
import json
import math
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from easgd.cli import main
from easgd.errors import SettingError
from easgd.experiments.paper import archive, drawing, table, traffic
from easgd.experiments.paper.images import Generated
from easgd.experiments.paper.make import sweep_of
from easgd.experiments.paper.recipes import RECIPES
from easgd.experiments.paper.scales import SCALES
from easgd.records import Step
from easgd.report.data import build
from easgd.report.figures import rows_of
from easgd.report.style import COLOURS
from measured_runs import write_run

SMOKE = SCALES["smoke"]


@pytest.fixture
def model(tmp_path):
    """MSGD reaches 10 % at 3 s, EAMSGD at 2 s with four workers and at 1 s with sixteen."""
    write_run(tmp_path / "runs" / "msgd", (0.9, 0.5, 0.3, 0.1), method="msgd")
    write_run(tmp_path / "runs" / "four", (0.9, 0.3, 0.1, 0.1), method="eamsgd", workers=4)
    write_run(tmp_path / "runs" / "many", (0.9, 0.1, 0.1, 0.1), method="eamsgd", workers=16)
    write_run(tmp_path / "runs" / "down", (0.9, 0.9, 0.9, 0.9), method="downpour", workers=16)
    return build([tmp_path / "runs"], [0.3, 0.1])


def figure_of(model, out, scale=SMOKE):
    out.mkdir()
    return drawing.PaperFigure("name", "Title", scale, model, out)


def test_rows_have_one_look_per_method(model, tmp_path):
    lines = drawing.by_method(model.lines)
    rows = dict(rows_of(lines, ("workers",)))
    assert list(rows) == ["p = 4", "p = 16"]
    assert [line.label for line in rows["p = 4"]] == ["MSGD", "EAMSGD"]
    assert sorted(line.label for line in rows["p = 16"]) == ["DOWNPOUR", "EAMSGD", "MSGD"]
    looks = {(line.label, line.look) for row in rows.values() for line in row}
    assert len(looks) == 3
    paths = drawing.in_rows(figure_of(model, tmp_path / "out"), ("workers",))
    archive.check_figures(paths)
    assert [path.name for path in paths] == ["name.png", "name.pdf", "name.csv"]


@pytest.mark.parametrize("name", ["fig2", "fig3", "fig4", "sequential", "speedup"])
def test_no_two_methods_of_a_figure_share_a_colour(name):
    methods = {config.method_class for config in sweep_of(RECIPES[name], SCALES["paper"]).configs}
    colours = {method.colour for method in methods}
    assert colours <= set(COLOURS)
    assert len(colours) == len(methods)


def test_the_headline_draws_the_speed_ups_and_marks_the_papers_number(model, tmp_path):
    bars = drawing.speedup_panel(model, beside_paper=True).series
    heights = sorted(y for bar in bars for y in bar.y if math.isfinite(y))
    # To 30 %: 2 s against 1 and 1 s; to 10 %: 3 s against 2 and 1 s; and the paper's 11.1, hatched.
    assert heights == pytest.approx([1.5, 2.0, 2.0, 3.0, 11.1])
    assert [bar.label for bar in bars] == ["to 30 %", "to 10 %", "paper: to 21%"]
    assert [bar.y for bar in bars if bar.hatched] == [[11.1]]
    archive.check_figures(drawing.speed(figure_of(model, tmp_path / "out")))


def test_the_papers_number_is_not_drawn_beside_another_problem(model):
    bars = drawing.speedup_panel(model, beside_paper=False).series
    assert not any("paper" in text for bar in bars for text in (bar.label, *bar.texts))


def test_a_level_that_only_the_parallel_method_was_watched_for_has_no_ratio(tmp_path):
    write_run(tmp_path / "msgd", (0.9, 0.5), method="msgd")
    write_run(tmp_path / "four", (0.9, 0.5, 0.1), method="eamsgd", workers=4)
    write_run(tmp_path / "many", (0.9, 0.5, 0.5), method="eamsgd", workers=16)
    (bars,) = drawing.speedup_panel(build([tmp_path], [0.1]), beside_paper=False).series
    assert bars.texts == ["no ratio", "not reached"]


def test_zoom_shows_the_second_half_up_to_twice_the_best():
    low, high = drawing.zoom([np.array([0.9, 0.2, 0.25]), np.array([0.9, 0.3, math.nan])])
    assert low < 20 < 30 < high < 32
    low, high = drawing.zoom([np.array([0.9, 0.9, 0.1]), np.array([0.9, 0.9, 0.9])])
    assert low < 10 < 20 < high < 25


def test_rates_are_drawn_for_as_long_as_all_of_them_were_watched(tmp_path, monkeypatch):
    write_run(tmp_path / "runs" / "long", (0.9, 0.5, 0.3, 0.1), method="eamsgd", lr=0.05)
    write_run(tmp_path / "runs" / "brief", (0.9, 0.7), method="eamsgd", lr=0.01)
    write_run(tmp_path / "runs" / "other", (0.9, 0.8, 0.7), method="easgd", lr=0.01)
    figure = figure_of(build([tmp_path / "runs"], None, None, True), tmp_path / "out")
    drawn = []
    monkeypatch.setattr(drawing, "write_figure", lambda spec, path: drawn.append(spec) or [])
    (points,) = drawing.per_rate(figure)
    ends = [sorted((s.label, s.x[-1]) for s in row.panels[0].series if not s.faint) for row in drawn[0].rows]
    assert sorted(ends) == [[("η = 0.01", 1.0), ("η = 0.05", 1.0)], [("η = 0.01", 2.0)]]
    assert ",0.1," in points.read_text(), "the CSV has all of it"
    (best,) = figure.tables
    assert ["EAMSGD p=4 τ=10 η=0.05", 0.1] in [[row[0][0], row[5][0]] for row in best.rows], "and so has the table"


def test_bytes_are_counted_per_parameter_and_gradient(tmp_path):
    """Of 4 parameters: after 3 steps 3 bytes, a quarter of a byte each; DDP would have sent 8, 32 times as much."""
    from safetensors.torch import save_file

    for name, more in {"msgd": {"method": "msgd"}, "int8": {"method": "eamsgd", "compression": "int8"}}.items():
        folder = write_run(tmp_path / "runs" / name, (0.9, 0.5, 0.3, 0.1), **more)
        save_file({"x": torch.zeros(4)}, folder / "model.safetensors")
    figure = figure_of(build([tmp_path / "runs"], [0.3, 0.1]), tmp_path / "out")
    archive.check_figures(traffic.against_bytes(figure))
    (row,) = figure.tables[0].rows
    assert [value for value, _ in row] == ["EAMSGD p=4 τ=10 int8", 3, 3, 0.25, 32.0, 0.1]


def test_the_descendants_are_drawn_against_time_and_bytes(tmp_path):
    from safetensors.torch import save_file

    for name, more in {"a": {"method": "easgd"}, "b": {"method": "diloco"}}.items():
        folder = write_run(tmp_path / "runs" / name, (0.9, 0.5, 0.3, 0.1), **more)
        save_file({"x": torch.zeros(4)}, folder / "model.safetensors")
    figure = figure_of(build([tmp_path / "runs"], [0.3, 0.1]), tmp_path / "out")
    archive.check_figures(traffic.time_and_bytes(figure))
    assert sorted(row[0][0] for row in figure.tables[0].rows) == ["DiLoCo p=4 τ=100", "EASGD p=4 τ=10"]


def test_generated_images_take_the_way_of_imagenet(tmp_path, monkeypatch):
    from easgd.data import load

    monkeypatch.setenv("EASGD_DATA", str(tmp_path))
    Generated("few", 12, 3, 60, 30).make()
    train, test = load("few", "train"), load("few", "test")
    assert (len(train), len(test), len(train.classes), train.shape) == (60, 30, 3, None)  # None: of any size
    assert train.image(7).shape == (12, 12, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["few-test.easgd", "few-train.easgd"]
    before = (tmp_path / "few-train.easgd").stat().st_mtime_ns
    Generated("few", 12, 3, 60, 30).make()
    assert (tmp_path / "few-train.easgd").stat().st_mtime_ns == before


def test_an_empty_figure_and_an_empty_table_are_refused(tmp_path):
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots()
    figure.savefig(tmp_path / "empty.png")
    (tmp_path / "empty.csv").write_text("a,b\n")
    for path in (tmp_path / "empty.png", tmp_path / "empty.csv", tmp_path / "missing.pdf"):
        with pytest.raises(SettingError, match=path.name):
            archive.check_figures([path])


def test_what_is_kept_beside_a_figure(model, tmp_path):
    from easgd.training.run import Run

    runs = [Run(entry.folder.path) for entry in model.entries]
    steps = [Step(0, 1, 0.5, 1, 0, 0, 0, loss=2.0), Step(1, 1, 0.9, 1, 0, 0, 0, distance=0.3, staleness=4, loss=1.0)]
    lines = "".join(json.dumps(step.as_dict()) + "\n" for step in [*steps, Step(0, 2, 1.5, 1, 0, 0, 0, loss=0.5)])
    (runs[0].path / "records-simulate.jsonl").write_text(lines)
    (runs[1].path / "records-simulate.jsonl").write_bytes(np.random.default_rng(0).bytes(300_000))
    folder = archive.keep_runs(runs, tmp_path / "headline")
    kept = sorted(str(path.relative_to(folder / runs[0].path.name)) for path in (folder / runs[0].path.name).iterdir())
    assert kept == ["config.json", "evaluations.jsonl", "records-simulate.jsonl.gz", "status.json", "workers.csv"]
    assert gzip.decompress((folder / runs[0].path.name / kept[2]).read_bytes()) == lines.encode()
    # Evaluations at 0, 1, 2 and 3 s: two steps before the second, one before the third.
    rows = (folder / runs[0].path.name / "workers.csv").read_text().splitlines()
    assert rows == ["time,loss,distance,staleness", "1,1.5,0.3,4", "2,0.5,,"]
    assert not list((folder / runs[1].path.name).glob("records*"))  # too large for a repository
    facts = archive.about(RECIPES["headline"], SMOKE, runs, [], tmp_path)
    assert facts["real_hours"] == 2.0  # four runs of half an hour
    assert facts["command"] == "easgd paper headline --scale smoke"
    assert facts["seeds"] == [0]
    assert facts["runs"]["msgd"] == {"state": "finished", "revision": None}
    assert [row[0][0] for row in archive.runs_table(runs).rows] == ["down", "four", "many", "msgd"]
    # The copy is still a folder of runs.
    assert len(build([folder]).entries) == 4


def test_the_simulated_breakdown_is_near_the_papers_table():
    for (experiment, tau, p), paper in table.PAPER.items():
        if experiment == "cifar":
            _, _, _, _, *ours = table.simulated(experiment, tau, p, 50)
            assert ours == pytest.approx(paper, abs=1.0), (tau, p)


@pytest.mark.heavy
@pytest.mark.timeout(400)
def test_a_recipe_from_nothing_and_again_without_repeating_its_runs(tmp_path, capsys, monkeypatch):
    """`easgd paper headline`, on still shorter runs: figure, page, archive; the second time nothing is trained."""
    short = replace(SMOKE, seconds=dict.fromkeys(SMOKE.seconds, 0.4), every=dict.fromkeys(SMOKE.every, 0.1))
    monkeypatch.setitem(SCALES, "smoke", short)
    command = ["paper", "headline", "--out", str(tmp_path), "--plain"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "measured just now" in said
    assert "3 of 3 runs to go" in said
    assert f"paper: {RECIPES['headline'].paper_says}" in said
    folder = tmp_path / "headline"
    assert {path.name for path in folder.iterdir()} == {
        "headline.png", "headline.pdf", "headline.csv", "README.md", "about.json", "runs",
    }  # fmt: skip
    page = (folder / "README.md").read_text()
    assert "`easgd paper headline --scale smoke`" in page
    assert "The paper says" in page
    assert json.loads((folder / "about.json").read_text())["real_hours"] > 0

    trained = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/evaluations.jsonl")}
    assert len(trained) == 3
    assert main(command) == 0
    assert "all 3 runs are finished" in capsys.readouterr().out
    assert trained == {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/evaluations.jsonl")}


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_interrupted_it_says_so_and_goes_on(tmp_path):
    """Ctrl-C once its runs have begun: exit 130 and no figure; the same command ends with one."""
    command = [sys.executable, "-m", "easgd", "paper", "headline", "--out", str(tmp_path), "--plain", "--jobs", "1"]
    process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if line.startswith("start"):
                break
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert "3 of 3 runs are not finished; the same command goes on" in said
    assert not (tmp_path / "headline").exists()
    assert subprocess.run(command, capture_output=True, timeout=250).returncode == 0
    assert (tmp_path / "headline" / "headline.png").exists()


def test_two_programs_do_not_share_a_folder(tmp_path, capsys):
    import fcntl

    with (tmp_path / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert main(["paper", "fig1", "--out", str(tmp_path)]) == 2
    assert "another easgd is at work" in capsys.readouterr().err


def test_a_figure_of_the_analysis_needs_no_runs(tmp_path):
    assert main(["paper", "fig1", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "fig1" / "fig1.png").stat().st_size > 1000
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_recipe_at_smoke_scale(tmp_path):
    assert main(["paper", "all", "--scale", "smoke", "--out", str(tmp_path), "--plain"]) == 0
    for name in RECIPES:
        figures = [*(tmp_path / name).glob("*.png"), *(tmp_path / name).glob("*.pdf"), *(tmp_path / name).glob("*.csv")]
        assert len(figures) == 3, name
        archive.check_figures(figures)


def test_an_archived_run_is_archived_again_with_all_it_had(model, tmp_path):
    """A figure is drawn from committed runs and new ones together; the committed have no records any more."""
    from easgd.training.run import Run

    run = Run(model.entries[0].folder.path)
    record = Step(0, 1, 0.5, 1, 0, 0, 0, loss=2.0).as_dict()
    (run.path / "records-simulate.jsonl").write_text(json.dumps(record) + "\n")
    first = archive.keep_runs([run], tmp_path / "first") / run.path.name
    second = archive.keep_runs([Run(first)], tmp_path / "second") / run.path.name
    contents = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in (first, second)]
    assert "workers.csv" in contents[0]
    assert contents[0] == contents[1]


def test_the_committed_table_of_times_is_made_again_from_its_packed_records(tmp_path):
    committed = Path(__file__).parents[3] / "docs/reproduction/laptop/breakdown"
    command = ["paper", "breakdown", "--scale", "laptop", "--measured", str(committed / "runs"), "--out", str(tmp_path)]
    assert main(command) == 0
    again, before = (folder / "breakdown.csv" for folder in (tmp_path / "breakdown", committed))
    rows = [[line for line in path.read_text().splitlines() if "measured" in line] for path in (again, before)]
    assert len(rows[0]) == 2
    assert rows[0] == rows[1]
