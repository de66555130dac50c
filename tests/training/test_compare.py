"""`easgd compare` with real runs: finished ones are kept, interrupted ones go on, failures stop nothing."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import pytest

import easgd
from easgd.cli import main
from easgd.cli.parsing import split
from easgd.training.compare import Comparison, default_jobs, plan
from easgd.training.compare_view import CompareView, clock
from easgd.training.folder import RunFolder
from easgd.training.jobs import Job
from easgd.training.sweep import make_sweep

SMALL = {"engine": "simulate", "steps": 6, "network": "digits-mlp", "train_subset": 50}
TINY = ("--engine", "simulate", "--steps", "6", "--network", "digits-mlp", "--train-subset", "50")


def start(*arguments):
    """Start the real command in a process of its own."""
    command = [sys.executable, "-m", "easgd", "compare", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_for(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def children(out: Path):
    """Ids of the processes that train into a folder."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(out).encode() in entry.read_bytes() and b"\0train\0" in entry.read_bytes():
                found.append(int(entry.parent.name))
        except OSError:
            continue
    return found


def test_a_grid_runs_and_is_not_repeated(tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["compare", "--methods", "msgd,easgd", "--workers", "2", *TINY, "--out", str(out)]
    assert main([*arguments, "--jobs", "2", "--levels", "0.9,0.5"]) == 0
    said = capsys.readouterr().out
    assert "2 runs, 2 at once" in said
    assert "(2 of 2)" in said
    assert "EASGD p=2 τ=10" in said
    assert "page: " in said
    names = json.loads((out / "compare.json").read_text())["runs"]
    assert names == ["msgd-p1-t1-lr0.05-s0", "easgd-p2-t10-lr0.2-s0"]
    assert all(RunFolder(out / name).status["state"] == "finished" for name in names)
    assert (out / "report" / "index.html").exists()
    before = {name: (out / name / "evaluations.jsonl").stat().st_mtime_ns for name in names}
    # another plan: what is finished is kept, and the tables leave the other method alone
    assert main([*arguments, "--methods", "msgd", "--seeds", "0,1", "--no-report"]) == 0
    said = capsys.readouterr().out
    assert "2 runs, 1 finished earlier" in said
    assert "EASGD" not in said
    assert {name: (out / name / "evaluations.jsonl").stat().st_mtime_ns for name in names} == before


def test_runs_are_those_of_easgd_train_from_any_thread(tmp_path):
    grid, found = {**SMALL, "method": "easgd", "workers": 2}, []
    thread = threading.Thread(target=lambda: found.extend(easgd.compare(grid, tmp_path / "out")))
    thread.start()
    thread.join(100)
    (run,) = found
    alone = easgd.train(run.config, tmp_path / "alone")
    assert run.evaluations == alone.evaluations
    assert run.config == alone.config


@pytest.mark.heavy
def test_a_failure_is_reported_and_stops_nothing(tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["compare", "--methods", "msgd", "--data", "nowhere,digits", *TINY, "--out", str(out)]) == 1
    streams = capsys.readouterr()
    assert "failed    msgd-p1" in streams.out
    assert "finished  msgd-p1" in streams.out
    (line,) = streams.err.strip().splitlines()
    assert "failed: " in line
    assert "nowhere" in line
    log = Path(line.split("log: ")[1].rstrip(")"))
    assert "nowhere" in log.read_text()


@pytest.mark.heavy
@pytest.mark.timeout(300)
def test_ctrl_c_saves_the_runs_and_the_same_command_goes_on(tmp_path):
    out = tmp_path / "out"
    arguments = [
        "--methods", "easgd", "--workers", "2", "--engine", "simulate", "--seconds", "20", "--seeds", "0,1",
        "--evaluate-every", "0.25", "--network", "digits-mlp", "--train-subset", "50", "--out", out, "--jobs", "1",
        "--no-report",
    ]  # fmt: skip
    first, second = (out / f"easgd-p2-t10-lr0.2-s{seed}" for seed in (0, 1))
    process = start(*arguments)
    wait_for((first / "evaluations.jsonl").exists)
    wait_for(lambda: len((first / "evaluations.jsonl").read_text().splitlines()) > 2)
    os.kill(process.pid, signal.SIGINT)
    said, complained = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the runs save themselves" in said
    assert "2 of 2 runs are not finished; the same command goes on" in complained
    assert "Traceback" not in complained
    assert RunFolder(first).status["state"] == "interrupted"
    assert not second.exists()
    assert children(out) == []
    saved = (first / "evaluations.jsonl").read_text()
    process = start(*arguments)
    said, complained = process.communicate(timeout=200)
    assert process.returncode == 0, complained
    assert "2 runs, 1 to go on with, 1 at once" in said
    assert (first / "evaluations.jsonl").read_text().startswith(saved)
    for run in (first, second):
        assert len(easgd.Run(run).curves()["time"]) == 81


@pytest.mark.heavy
def test_a_second_ctrl_c_ends_at_once(tmp_path):
    out = tmp_path / "out"
    process = start("--methods", "easgd", "--engine", "simulate", "--steps", "1000000", "--out", out, "--jobs", "1")
    (run,) = [out / "easgd-p4-t10-lr0.2-s0"]
    wait_for((run / "evaluations.jsonl").exists)
    pids = children(out)
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)  # it cannot save itself
    os.kill(process.pid, signal.SIGINT)
    assert process.stdout is not None
    while "save themselves" not in process.stdout.readline():
        pass
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert children(out) == []


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's promise is Linux's")
def test_runs_die_with_a_killed_comparison(tmp_path):
    out = tmp_path / "out"
    process = start("--methods", "easgd", "--engine", "simulate", "--steps", "1000000", "--out", out, "--jobs", "1")
    wait_for(lambda: (out / "easgd-p4-t10-lr0.2-s0" / "evaluations.jsonl").exists())
    assert children(out)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    wait_for(lambda: children(out) == [])


def test_a_name_that_is_taken_gets_a_number(tmp_path):
    sweep = make_sweep({**SMALL, "method": "easgd", "beta": [0.5, 0.9]})
    assert [job.name for job in plan(sweep, tmp_path)] == ["easgd-p4-t10-lr0.2-s0", "easgd-p4-t10-lr0.2-s0-2"]


def test_real_workers_run_one_at_a_time():
    assert default_jobs(make_sweep({"method": ["msgd", "easgd"], "engine": "local"}).configs) == 1
    assert default_jobs(make_sweep({"method": "msgd", "engine": "simulate"}).configs) == 1  # one run, one process


def test_the_remaining_time_is_judged_by_what_was_seen(tmp_path):
    config = make_sweep(SMALL).configs[0]
    jobs = [Job(config, tmp_path / str(i)) for i in range(4)]
    comparison = Comparison(jobs, tmp_path, 2, CompareView())
    assert comparison.remaining() is None
    # one took 10 s; one stands at a half after 5 s of the same pace; two wait: (5 + 20)/2 s
    jobs[0].state, jobs[0].progress, jobs[0].began, jobs[0].seconds = "finished", 1.0, 1.0, 10.0
    jobs[1].state, jobs[1].progress, jobs[1].began, jobs[1].seconds = "running", 0.5, 1.0, 5.0
    comparison.waiting = [[job] for job in jobs[2:]]
    comparison.running = {jobs[1]: Mock(jobs=jobs[1:2])}
    assert comparison.remaining() == pytest.approx(12.5)
    # two that go the same way take the time of one
    comparison.waiting = [jobs[2:]]
    assert comparison.remaining() == pytest.approx(7.5)


def test_durations_are_readable():
    assert [clock(s) for s in (3, 75, 3725)] == ["3 s", "1 min 15 s", "1 h 02 min"]


def test_a_network_keeps_its_commas():
    assert split("(1,8)L(64,1)S(10,1),digits-mlp") == ["(1,8)L(64,1)S(10,1)", "digits-mlp"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.toml"], "no such file"),
        (["--metods", "easgd"], "did you mean '--methods'?"),
        (["--methods"], "--methods = nothing"),
        (["--methods", "easgd,msgdd"], "did you mean 'msgd'?"),
        (["--jobs", "none"], "--jobs = 'none'"),
        (["--jobs", "0"], "--jobs = 0"),
        (["--levels", "x"], "levels = 'x'"),
        (["a.toml", "b.toml"], "one file at a time"),
        (["--steps", "5", "--out", "/dev/null/x"], "/dev/null/x"),
        (["--steps", "5", "--out", "/dev/null"], "it is a file"),
    ],
)
def test_mistakes_are_one_line_and_exit_2(arguments, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["compare", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert len(error.strip().splitlines()) == 1


def test_a_dry_run_starts_nothing(tmp_path, capsys):
    assert main(["compare", "--methods", "msgd,easgd", "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    assert "2 runs in" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_the_example_is_a_grid():
    sweep = easgd.training.sweep.load_sweep(Path(__file__).parents[2] / "examples" / "compare-digits.toml")
    assert {(c.method, c.workers) for c in sweep.configs} == {("msgd", 1), ("easgd", 4), ("eamsgd", 4)}
    assert {c.engine for c in sweep.configs} == {"simulate"}
