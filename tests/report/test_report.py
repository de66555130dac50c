"""`easgd report` as a user types it: files, numbers, broken folders, mistakes."""

import csv
import json
import re
import subprocess
import sys

import pytest

import easgd
from easgd.cli import main
from easgd.report.data import build
from folders import comparison, steps, write_run

FILES = {
    "index.html", "curves.png", "curves.pdf", "curves.csv", "time-to-error.png", "time-to-error.pdf",
    "time-to-error.csv", "best-errors.csv", "time-breakdown.csv", "traffic.csv", "runs.csv", "settings.csv",
    "environment.csv",
}  # fmt: skip


def rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_a_report_is_page_figures_and_numbers(tmp_path, capsys):
    comparison(tmp_path)
    assert main(["report", str(tmp_path), "--levels", "0.1,0.05"]) == 0
    said = capsys.readouterr().out
    assert "EAMSGD p=4 τ=10 reaches 10 % test error 4.0 times sooner than MSGD" in said
    assert "never" in said
    out = tmp_path / "report"
    assert {path.name for path in out.iterdir()} == FILES
    assert (out / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (out / "curves.pdf").read_bytes().startswith(b"%PDF")
    times = {(row["method"], row["level"]): row for row in rows(out / "time-to-error.csv")}
    assert times["EAMSGD p=4 τ=10", "0.1"]["seconds"] == "2"
    assert times["EAMSGD p=4 τ=10", "0.1"]["speedup"] == "4"
    assert times["EAMSGD p=4 τ=10", "0.05"]["lower_bound"] == "1"
    assert times["MSGD", "0.05"]["seconds"] == ""  # never
    best = {row["method"]: row["best_error"] for row in rows(out / "best-errors.csv")}
    assert best == {"MSGD": "0.1", "EASGD p=4 τ=10": "0.08", "EAMSGD p=4 τ=10": "0.05"}
    split = {row["method"]: row for row in rows(out / "time-breakdown.csv")}["EASGD p=4 τ=10"]
    # 20 steps of 0.3/0.05/0.15 s; per 400 steps twenty times that
    assert (split["compute"], split["data"], split["communication"]) == ("6", "1", "3")
    assert split["per_400_steps"] == "120/20/60"
    assert len(rows(out / "curves.csv")) == 12


def test_a_second_report_does_not_read_the_first(tmp_path):
    comparison(tmp_path)
    first = easgd.write_report(tmp_path, levels=[0.1]).read_text()
    assert easgd.write_report(tmp_path, levels=[0.1]).read_text() == first


def test_the_time_axis_says_whose_time_it_is(tmp_path):
    write_run(tmp_path / "a", method="msgd")
    assert build([tmp_path]).axis == "virtual time [s]"
    write_run(tmp_path / "b", method="easgd", engine="local")
    assert build([tmp_path / "b"]).axis == "wallclock [s]"
    both = build([tmp_path])
    assert both.axis == "time [s]"
    assert "not their times" in both.notes[0]
    write_run(tmp_path / "c", times=(0, 3600, 7200, 36000), method="msgd", engine="local")
    assert build([tmp_path / "c"]).axis == "wallclock [h]"


def test_running_killed_and_broken_runs_are_reported(tmp_path, capsys):
    comparison(tmp_path)
    with (tmp_path / "msgd" / "evaluations.jsonl").open("a") as file:
        file.write('{"time": 9.0, "test_er')  # killed while it wrote
    (tmp_path / "msgd" / "status.json").write_text(json.dumps({"state": "running"}))
    with (tmp_path / "easgd" / "records-simulate.jsonl").open("a") as file:
        file.write('{"event": "step", "wor')
    (tmp_path / "easgd" / "environment.json").write_text("{")
    for name in ("status.json", "environment.json", "records-simulate.jsonl"):
        (tmp_path / "eamsgd" / name).unlink()
    write_run(tmp_path / "young", times=(), errors=(), records=[], method="downpour", state="running")
    lost = write_run(tmp_path / "lost", method="admm", rho=1.0)
    (lost / "config.json").unlink()
    bare = write_run(tmp_path / "bare", method="admm", rho=1.0)
    (bare / "evaluations.jsonl").unlink()
    assert main(["report", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    for words in (
        "msgd: evaluations.jsonl: 1 of 5 lines cannot be read",
        "easgd: environment.json is broken",
        "eamsgd: status.json is missing",
        "eamsgd: no records of steps",
        "young: nothing has been evaluated yet",
        "lost: config.json is missing",
        "bare: evaluations.jsonl is missing",
    ):
        assert words in said
    found = {row["run"]: row for row in rows(tmp_path / "report" / "runs.csv")}
    assert set(found) == {"msgd", "easgd", "eamsgd", "young", "lost", "bare"}
    assert (found["msgd"]["evaluations"], found["msgd"]["state"]) == ("4", "running")
    assert found["lost"]["best_error"] == "0.1"
    assert "config.json is missing" in found["lost"]["notes"]
    assert {row["run"] for row in rows(tmp_path / "report" / "curves.csv")} == set(found) - {"young", "bare"}


def test_a_run_that_has_measured_nothing_makes_a_page(tmp_path, capsys):
    write_run(tmp_path / "young", times=(), errors=(), records=[], state="running")
    assert main(["report", str(tmp_path)]) == 0
    assert "Nothing has been evaluated yet" in capsys.readouterr().out
    assert "No run has been evaluated yet" in (tmp_path / "report" / "index.html").read_text()


def test_diverging_and_nonfinite_curves_are_drawn(tmp_path):
    write_run(tmp_path / "good", method="msgd")
    write_run(tmp_path / "bad", errors=(0.9, 1e30, float("nan"), float("inf")), method="easgd")
    page = easgd.write_report(tmp_path).read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1])
    (plot,) = [plot for plot in data if plot["id"] == "test_error"]
    assert plot["linear"][1] < 120  # the one that left does not flatten the other
    assert [trace["y"] for trace in plot["data"]] == [[90, 40, 20, 10], [90, 1e32, None, None]]


def test_what_comes_from_files_is_escaped(tmp_path):
    evil = "</script><script>alert(1)</script>"
    record = {"event": "death", "time": 1.0, "worker": 0, "detail": evil}
    run = write_run(tmp_path / "<img src=x onerror=alert(2)>", records=[*steps(0), record], method="msgd")
    (run / "status.json").write_text(json.dumps({"state": evil, "reason": evil}))
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "network": evil, "surprise": 1}))
    page = easgd.write_report(tmp_path).read_text()
    assert "alert(1)" in page
    assert evil not in page
    assert "<img" not in page[: page.index("plotly.js v")]
    assert page.count("<script") - page[page.index("plotly.js v") :].count("<script") == 2


def test_events_are_listed(tmp_path):
    death = {"event": "death", "time": 1.5, "worker": 2, "detail": "signal SIGKILL"}
    write_run(tmp_path / "run", records=[*steps(0), death], method="easgd")
    easgd.write_report(tmp_path / "run")
    (row,) = rows(tmp_path / "run" / "report" / "events.csv")
    assert row == {"run": "run", "event": "death", "time": "1.5", "worker": "2", "detail": "signal SIGKILL"}


def test_nodes_are_listed_where_the_records_have_them(tmp_path):
    joins = [{"event": "join", "time": 0.1, "worker": w, "detail": "", "node": f"host{w % 2}"} for w in range(4)]
    write_run(tmp_path / "run", records=[*steps(0), *joins], method="easgd")
    easgd.write_report(tmp_path / "run")
    found = {row["node"]: row["workers"] for row in rows(tmp_path / "run" / "report" / "nodes.csv")}
    assert found == {"host0": "0 2", "host1": "1 3"}


def test_seeds_are_averaged_and_a_short_one_is_not(tmp_path):
    for seed, errors in enumerate(((0.9, 0.4, 0.2, 0.1), (0.9, 0.6, 0.4, 0.3))):
        write_run(tmp_path / f"{seed}", errors=errors, method="easgd", seed=seed)
    write_run(tmp_path / "2", times=(0, 1), errors=(0.9, 0.8), method="easgd", seed=2, state="running")
    model = build([tmp_path])
    (line,) = model.lines
    assert line.mean["test_error"].tolist() == pytest.approx([0.9, 0.5, 0.3, 0.2])
    assert len(line.seeds) == 3
    assert "no part of a mean" in model.notes[0]


def test_many_methods_are_spread_over_rows(tmp_path):
    from easgd.report.figures import rows_of
    from easgd.report.style import looks

    write_run(tmp_path / "msgd", method="msgd")
    for workers in (4, 8, 16):
        for method in ("easgd", "eamsgd", "downpour"):
            write_run(tmp_path / f"{method}{workers}", method=method, workers=workers, records=[])
    model = build([tmp_path])
    found = rows_of(model.lines)
    assert [title for title, _ in found] == ["p = 4", "p = 8", "p = 16"]
    assert all(len(lines) == 4 and lines[0].label == "MSGD" for _, lines in found)
    styles = looks(model.choices)
    assert len(set(styles)) == len(styles) == 10
    assert (easgd.write_report(tmp_path).parent / "curves.png").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "no such folder"),
        (["empty"], "it holds no runs"),
        (["run", "--levels", "0.2,x"], "'x' is not a number"),
        (["run", "--levels"], "--levels = nothing"),
        (["run", "--baseline", "sgd"], "unknown baseline 'sgd'"),
        (["run", "--scale", "lin"], "did you mean 'linear'?"),
        (["run", "--lvels", "0.2"], "did you mean '--levels'?"),
        (["run", "--out", "/dev/null/x"], "cannot be written"),
        (["--every"], "no run given"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    write_run(tmp_path / "run")
    assert main(["report", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize("command", ["report", "compare"])
def test_help_loads_nothing_heavy_and_has_an_example(command, capsys):
    code = (
        f"import sys; from easgd.cli import main; main(['{command}', '--help']); "
        "print(sorted({'numpy', 'torch', 'plotly', 'matplotlib', 'rich'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert f"example: easgd {command}" in out
    assert out.endswith("[]\n")


def test_text_that_a_spreadsheet_would_run_is_quoted(tmp_path):
    from easgd.report.table import write_rows

    path = write_rows(
        tmp_path / "t.csv", ["=name", "value"], [["=1+2", -1.5], ["@x", -3], ["-0.5", "+a"], ["–", "a=b"]]
    )
    assert path.read_text() == "'=name,value\n'=1+2,-1.5\n'@x,-3\n-0.5,'+a\n–,a=b\n"


def test_a_launched_run_is_known_by_what_its_script_was_attached_with(tmp_path, capsys):
    """It has no settings and no evaluations: p, τ and η come from the first worker, the rest from its steps."""
    run = tmp_path / "mine"
    run.mkdir()
    attached = {"method": "EASGD", "workers": 2, "period": 10, "lr": 0.05, "engine": "local"}
    join = {"event": "join", "time": 0.0, "worker": 0, "attached": attached}
    (run / "records-launcher.jsonl").write_text("")
    step = {"event": "step", "worker": 0, "clock": 0, "time": 1.0, "compute": 1.0, "data": 0.0, "communication": 0.0}
    step |= {"waiting": 0.0, "staleness": 0, "bytes": 80}
    (run / "records-0-0.jsonl").write_text(json.dumps(join) + "\n" + json.dumps(step) + "\n")
    assert main(["report", str(run)]) == 0
    said = capsys.readouterr().out
    assert "EASGD p=2 τ=10 (mine): 1 steps, 1 exchanges." in said
    assert "missing" not in said
    traffic = rows(run / "report" / "traffic.csv")[0]
    assert (traffic["workers"], traffic["period"], traffic["lr"], traffic["bytes"]) == ("2", "10", "0.05", "80")
    page = (run / "report" / "index.html").read_text()
    assert "engine <b>local</b>" in page
    assert "unknown" not in page.partition("<h2>Where the time went")[0]  # nor an empty table of test errors
    assert "Best test error" not in page
