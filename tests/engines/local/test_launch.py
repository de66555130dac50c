"""The launcher: environment, output, exit codes, joining, and input it refuses."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from easgd.errors import SettingError
from easgd.launch import run_directory as rundir
from easgd.launch.backend import RunRequest
from easgd.launch.run_directory import OwnedRun
from launching import DEADLINE, PREAMBLE, alive, until


def easgd(*args: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "easgd", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE, cwd=cwd, check=False)


def test_workers_find_their_place_in_variables_of_our_own(launch, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.setenv(name, "7")  # as under torchrun: a worker that inherited it would look for a group
    body = """
names = "EASGD_RANK EASGD_WORKERS RANK WORLD_SIZE MASTER_ADDR EASGD_INCARNATION EASGD_SCHEDULE OMP_NUM_THREADS".split()
print("place", *(os.environ.get(name, "-") for name in names))
print("run", os.path.isdir(run := os.environ["EASGD_RUN"].removeprefix("local:")), oct(os.stat(run).st_mode & 0o777))
print("argv", sys.argv[1:], __name__, os.path.dirname(__file__) == sys.path[0])
"""
    one = launch(body, "--schedule", "round-robin", workers=2)
    code, out, err = one.wait()
    assert code == 0, err
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    threads = os.environ.get("OMP_NUM_THREADS", threads)
    for rank in (0, 1):
        assert f"[{rank}] place {rank} 2 - - - 0 round-robin {threads}" in out
        assert f"[{rank}] run True 0o700" in out
        assert f"[{rank}] argv [] __main__ True" in out
    assert [e["event"] for e in one.events()] == ["leave", "leave"]


def test_output_is_prefixed_on_the_terminal_and_raw_in_the_log(launch):
    body = r"""
print(f"one\ntwo {rank}")
print("wrong", file=sys.stderr)
sys.stdout.write("10 %\r20 %\r30 %\n\nno end")
"""
    one = launch(body, workers=2)
    code, out, err = one.wait()
    assert code == 0
    for rank in (0, 1):
        mine = [line for line in out.splitlines() if line.startswith(f"[{rank}]")]
        assert mine == [f"[{rank}] {text}" for text in ("one", f"two {rank}", "30 %", "", "no end")]
        assert f"[{rank}] wrong" in err
        log = (one.out / "logs" / f"worker-{rank}.log").read_bytes()
        assert f"one\ntwo {rank}\n".encode() in log
        assert b"10 %\r20 %\r30 %\n" in log
        assert b"wrong\n" in log


def test_output_streams_while_the_worker_runs(launch):
    one = launch('print("first"); up(); until("go")', workers=1)
    one.pid(0)
    assert one.process.stdout.readline() == "[0] first\n"
    one.touch("go")
    assert one.wait()[0] == 0


def test_a_module_and_its_arguments(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text("import sys\nprint(__name__, sys.argv[1:])\n")
    done = easgd("launch", "-n", "1", "-m", "package.train", "--out", "-n", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "[0] __main__ ['--out', '-n', '3']" in done.stdout
    assert list((tmp_path / "runs").glob("train-*-*/logs/worker-0.log"))


def test_an_exception_costs_one_worker(launch):
    body = """
if rank == 1:
    raise ValueError("boom")
until("go")
print("done", rank)
"""
    one = launch(body, workers=3)
    until(lambda: one.events("death"), "the death is recorded")
    one.touch("go")
    code, out, err = one.wait()
    assert code == 1
    assert "[0] done 0" in out
    assert "[2] done 2" in out
    assert "[1] ValueError: boom" in err
    assert "runpy" not in err, "the traceback begins in the user's script"
    assert "ValueError: boom" in (one.out / "logs" / "worker-1.log").read_text()
    assert one.events("death")[0]["detail"] == "exit code 1"


def test_a_refused_setting_is_one_line_and_not_restarted(launch):
    one = launch("import easgd.errors; raise easgd.errors.SettingError('period = 0: no')", "--restarts", "3", workers=1)
    code, _, err = one.wait()
    assert code == 2
    assert err.count("[0]") == 1
    assert "[0] easgd: error: period = 0: no" in err
    assert not one.events("restart")


def test_records_of_an_earlier_run_are_moved_aside(launch):
    assert launch("print('x')", workers=1).wait()[0] == 0
    again = launch("print('y')", workers=1)
    assert again.wait()[0] == 0
    assert len(again.events()) == 1
    assert (again.out / "logs" / "worker-0.log").read_text() == "y\n"
    assert (again.out / "earlier-1" / "logs" / "worker-0.log").read_text() == "x\n"


def test_time_split_is_printed_as_the_papers_table(launch):
    body = """
import json
step = dict(event="step", worker=rank, clock=0, time=1.0, compute=2.0, data=0.25, communication=0.5, waiting=0.125)
with open(out / f"records-{rank}-{incarnation}.jsonl", "w") as file:
    file.write((json.dumps(step) + "\\n") * 2 + '{"event": "st')   # killed while it wrote
"""
    code, out, _ = launch(body, workers=2).wait()
    assert code == 0
    rows = [line.split() for line in out.splitlines() if line.split()[:1] in (["0"], ["1"])]
    assert rows == [["0", "2", "4/0.5/1.25", "0.25"], ["1", "2", "4/0.5/1.25", "0.25"]]


def test_a_closed_terminal_costs_its_output_not_the_training(launch):
    body = """
print("first")
up()
until("go")
for _ in range(3000):
    print("x" * 100)
"""
    one = launch(body, workers=1)
    one.pid(0)
    assert one.process.stdout.readline() == "[0] first\n"
    one.process.stdout.close()
    one.touch("go")
    assert one.process.wait(timeout=DEADLINE) == 0
    assert (one.out / "logs" / "worker-0.log").stat().st_size == 6 + 3000 * 101


def test_a_flood_of_output_arrives_whole_and_deaths_are_still_noticed(launch):
    body = """
if rank == 0:
    up()
    while not (out / "go").exists():
        os.write(1, b"flood " * 10000 + b"\\n")
else:
    up()
    until("never")
"""
    one = launch(body, workers=2)
    with open(os.devnull, "w") as nowhere:
        reader = subprocess.Popen(["cat"], stdin=one.process.stdout, stdout=nowhere)
    one.process.stdout.close()
    os.kill(one.pid(1), 9)
    until(lambda: one.events("death"), "the death is recorded while the flood goes on")
    one.touch("go")
    assert one.process.wait(timeout=DEADLINE) == 1
    reader.wait(timeout=DEADLINE)
    assert (one.out / "logs" / "worker-0.log").stat().st_size % 60001 == 0


# joining ---------------------------------------------------------------------------------------------------------


def test_join_from_another_process(launch):
    one = launch('up(); until("go")', workers=2)
    run = Path(one.run)
    listed = easgd("launch", "--list").stdout
    assert run.name in listed
    assert "2 workers" in listed
    body = 'up(); print("place", rank, os.environ["EASGD_WORKERS"], os.environ["EASGD_RUN"]); until("go")'
    two = launch(body, "--join", run.name, where="b")
    three = launch(body, "--join", str(run), where="c")
    ranks = {2: one.pid(2), 3: one.pid(3)}
    assert all(map(alive, ranks.values()))
    assert sorted(e["worker"] for e in one.events("join")) == [2, 3]
    one.touch("go")
    outputs = [two.wait(), three.wait()]
    assert one.wait()[0] == 0
    assert [code for code, _, _ in outputs] == [0, 0]
    for rank in (2, 3):
        assert sum(f"[{rank}] place {rank} {rank + 1} local:{run}" in out for _, out, _ in outputs) == 1
        assert sum(f"joined run {run.name} as worker {rank}" in err for _, _, err in outputs) == 1
    assert not run.exists()


def test_a_joiner_that_leaves_frees_its_rank_and_touches_nothing(launch):
    one = launch('up(); until("go")', workers=1)
    run = Path(one.run)
    assert launch("up()", "--join", run.name, where="b").wait()[0] == 0
    assert alive(one.pid(0))
    assert (run / "owner").exists()
    two = launch("up(); print(rank, incarnation)", "--join", run.name, where="b")
    code, out, _ = two.wait()
    assert (code, out) == (0, "[1] 1 1\n")
    one.touch("go")
    assert one.wait()[0] == 0


def test_a_killed_joiner_is_noticed_by_the_runs_launcher(launch):
    one = launch('up(); until("go")', workers=1)
    two = launch('up(); until("never")', "--join", Path(one.run).name, where="b")
    pid = one.pid(1)
    two.process.kill()
    until(lambda: not alive(pid), "the joined worker died with its launcher")
    death = until(lambda: one.events("death"), "the run's launcher recorded it")[0]
    assert (death["worker"], death["detail"]) == (1, "its launcher was killed")
    one.touch("go")
    assert one.wait()[0] == 0


def test_joiners_stop_when_the_run_ends(launch):
    one = launch('up(); until("go")', workers=1)
    two = launch('up(); until("never")', "--join", Path(one.run).name, where="b")
    pid = one.pid(1)
    one.touch("go")
    assert one.wait()[0] == 0
    code, _, err = two.wait()
    assert code == 0
    assert "has ended" in err
    assert not alive(pid)


ATTACHED = """
import torch, easgd
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
worker = easgd.attach(model, optimizer, easgd.EASGD(period=1))
up()
"""


@pytest.mark.heavy
def test_a_joined_worker_that_outlives_the_run_ends_without_a_traceback(launch):
    one = launch(ATTACHED + 'until("go")', workers=1)
    two = launch(ATTACHED + 'until("never")', "--join", Path(one.run).name, where="b")
    one.pid(1)
    one.touch("go")
    assert one.wait()[0] == 0
    code, _, err = two.wait()
    assert code == 0
    assert "has ended" in err
    assert "Traceback" not in err


def test_joining_a_dead_run_lists_the_live_ones(launch):
    one = launch('up(); until("go")', workers=1)
    name = Path(one.run).name
    done = easgd("launch", "--join", "train-1-dead", str(one.script))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"live runs are {name};" in done.stderr


# bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["-n", "0", "train.py"], "-n = 0"),
        (["-n", "two", "train.py"], "-n = 'two'"),
        (["-n"], "whole number"),
        ([], "usage"),
        (["-n", "2"], "no script given"),
        (["-m"], "name of a module"),
        (["missing.py"], "'missing.py' does not exist"),
        (["--schedule", "asynch", "train.py"], "did you mean 'async'?"),
        (["--restart", "1", "train.py"], "did you mean '--restarts'?"),
        (["--restarts", "-1", "train.py"], "--restarts = -1"),
        (["--grace", "-1", "train.py"], "--grace = -1"),
        (["--out", "train.py", "train.py"], "out = "),
        (["--join", "x", "--schedule", "sync", "train.py"], "leave out --schedule"),
        (["-n", "2000", "train.py"], "at most 1024"),
        (["--shards", "2", "train.py"], "add --ray"),
        (["--compression", "int8", "train.py"], "add --ray"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(args, words, tmp_path, monkeypatch, capsys):
    from easgd.cli import main

    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PREAMBLE)
    assert main(["launch", *args]) == 2
    out, err = capsys.readouterr()
    assert words in out + err
    if words != "usage":
        assert out == ""
        assert len([line for line in err.splitlines() if "error" in line]) == 1
    assert not list(rundir.base().glob(f"*-{os.getpid()}-*"))


def test_help_loads_nothing_heavy_and_shows_an_example():
    done = easgd("launch", "--help")
    assert done.returncode == 0
    assert "example: easgd launch -n 4" in done.stdout
    loaded = "import sys, easgd.cli.launch; print([m for m in ('torch', 'numpy', 'rich') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True).stdout == "[]\n"


def test_describes_itself_to_other_processes(launch):
    one = launch('up(); until("go")', "--schedule", "sync", workers=1)
    told = json.loads((Path(one.run) / "owner").read_text())
    assert (told["pid"], told["workers"], told["schedule"]) == (one.process.pid, 1, "sync")
    one.touch("go")
    assert one.wait()[0] == 0


def test_no_room_for_the_run_directory_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("EASGD_SHARED", str(tmp_path))

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(SettingError, match=r"no run directory in .* \(no space left on device\); make room"):
        OwnedRun(RunRequest(["script", "x.py"], 1, "run"))
    assert not any(tmp_path.glob("*/*")), "nothing is left behind"
