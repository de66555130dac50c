"""Workers and launchers that are really killed, stopped and interrupted."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from easgd.launch import run_directory as rundir
from easgd.launch.backend import RunRequest
from launching import DEADLINE, PREAMBLE, alive, until

STEP = """
up()
while not (out / "go").exists():
    (out / f"steps-{rank}").open("ab").write(b".")
    time.sleep(0.01)
"""


def steps(one, rank):
    path = one.out / f"steps-{rank}"
    return path.stat().st_size if path.exists() else 0


def goes_on(one, *ranks):
    before = {rank: steps(one, rank) for rank in ranks}
    until(lambda: all(steps(one, rank) > before[rank] + 3 for rank in ranks), f"workers {ranks} go on")


def test_one_of_four_killed_the_others_go_on(launch):
    one = launch(STEP)
    pids = one.pids()
    os.kill(pids[2], signal.SIGKILL)
    death = until(lambda: one.events("death"), "the death is recorded")[0]
    assert (death["worker"], death["detail"]) == (2, "signal SIGKILL")
    goes_on(one, 0, 1, 3)
    one.touch("go")
    code, _, err = one.wait()
    assert code == 1
    assert "worker 2 died (signal SIGKILL); 3 others go on" in err
    assert sorted(e["worker"] for e in one.events("leave")) == [0, 1, 3]


def test_a_killed_worker_starts_again_with_a_new_incarnation(launch):
    one = launch(STEP, "--restarts", "2", workers=2)
    one.pids(2)
    os.kill(one.pid(1), signal.SIGKILL)
    os.kill(one.pid(1, 1), signal.SIGKILL)
    again = one.pid(1, 2)
    assert alive(again)
    one.touch("go")
    code, _, err = one.wait()
    assert code == 0, err
    assert [e["event"] for e in one.events() if e["worker"] == 1] == ["death", "restart", "death", "restart", "leave"]
    assert "incarnation 2, restart 2 of 2" in err


def test_restarts_run_out(launch):
    one = launch("print('try', incarnation); sys.exit(7)", "--restarts", "2", workers=1)
    code, out, err = one.wait()
    assert code == 7
    assert out.count("try") == 3
    assert (one.out / "logs" / "worker-0.log").read_text() == "try 0\ntry 1\ntry 2\n"
    assert "all 1 workers died" in err


def test_all_die(launch):
    one = launch(STEP)
    run = Path(one.run)
    for pid in one.pids():
        os.kill(pid, signal.SIGKILL)
    code, _, err = one.wait()
    assert code == 1
    assert "all 4 workers died" in err
    assert len(one.events("death")) == 4
    assert not run.exists()


def test_ctrl_c_once_lets_workers_end_cleanly(launch):
    body = """
up()
try:
    until("never")
except KeyboardInterrupt:
    (out / f"saved-{rank}").touch()
    raise
"""
    one = launch(body)
    run, pids = Path(one.run), one.pids()
    one.process.send_signal(signal.SIGINT)
    code, _, err = one.wait()
    assert code == 130
    assert len(list(one.out.glob("saved-*"))) == 4
    assert "Traceback" not in err
    assert len(one.events("stopped")) == 4
    assert not any(map(alive, pids))
    assert not run.exists()


def test_sigterm_is_like_one_ctrl_c(launch):
    one = launch('up(); until("never")', workers=2)
    run, pids = Path(one.run), one.pids(2)
    one.process.terminate()
    assert one.wait()[0] == 128 + signal.SIGTERM
    assert not any(map(alive, pids))
    assert not run.exists()


STUBBORN = """
signal.signal(signal.SIGINT, lambda *_: (out / f"heard-{rank}").touch())
up()
until("never")
"""


def test_ctrl_c_twice_kills_at_once(launch):
    one = launch(STUBBORN, "--grace", "3600", workers=2)
    run, pids = Path(one.run), one.pids(2)
    one.process.send_signal(signal.SIGINT)
    until(lambda: len(list(one.out.glob("heard-*"))) == 2, "both heard the first")
    one.process.send_signal(signal.SIGINT)
    assert one.wait()[0] == 130, "long before the time of grace is over"
    assert not any(map(alive, pids))
    assert [e["detail"] for e in one.events("stopped")] == ["signal SIGKILL"] * 2
    assert not run.exists()


def test_the_terminals_ctrl_c_reaches_each_worker_once(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        PREAMBLE
        + """
heard = []
signal.signal(signal.SIGINT, lambda *_: (heard.append(1), (out / f"heard-{rank}").touch()))
up()
until(f"heard-{rank}")
until("go")
sys.exit(len(heard))
"""
    )
    controller, terminal = os.openpty()
    launcher = subprocess.Popen(
        [sys.executable, "-m", "easgd", "launch", "-n", "2", "--out", str(tmp_path), str(script)],
        stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )  # fmt: skip
    try:
        os.close(terminal)
        until(lambda: len(list(tmp_path.glob("up-*"))) == 2, "both are up")
        os.write(controller, b"\x03")
        until(lambda: len(list(tmp_path.glob("heard-*"))) == 2, "both heard it")
        (tmp_path / "go").touch()
        assert launcher.wait(timeout=DEADLINE) == 130
    finally:
        launcher.kill()
        launcher.wait()
        os.close(controller)
    ends = [json.loads(line) for line in (tmp_path / "records-launcher.jsonl").read_text().splitlines()]
    assert [e["detail"] for e in ends] == ["exit code 1"] * 2, "one SIGINT each"


def test_the_grace_period_ends(launch):
    one = launch(STUBBORN, "--grace", "0.3", workers=1)
    pid = one.pid(0)
    one.process.send_signal(signal.SIGINT)
    assert one.wait()[0] == 130
    assert not alive(pid)


def test_ctrl_c_while_workers_start_gives_no_traceback(launch):
    one = launch('until("never")', workers=3)
    # The owner file appears just before the workers: most of them are still starting Python.
    until(lambda: list(rundir.base().glob(f"train-{one.process.pid}-*/ranks")), "the launcher is at work")
    one.process.send_signal(signal.SIGINT)
    code, _, err = one.wait()
    assert code == 130
    assert "Traceback" not in err


def test_a_killed_launcher_leaves_no_orphan_and_the_next_one_cleans_up(launch):
    one = launch(STEP)
    run, pids = Path(one.run), one.pids()
    one.process.kill()
    until(lambda: not any(map(alive, pids)), "the workers died with their launcher")
    assert run.exists()
    assert launch("pass", workers=1, where="b").wait()[0] == 0
    assert not run.exists()


def test_processes_that_a_worker_started_end_with_it(launch):
    body = """
import subprocess
(out / "grandchild").write_text(str(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"]).pid))
up()
until("go")
"""
    one = launch(body, workers=1)
    one.pid(0)
    grandchild = int((one.out / "grandchild").read_text())
    one.touch("go")
    assert one.wait()[0] == 0
    until(lambda: not alive(grandchild), "the grandchild is gone")


def test_two_runs_do_not_disturb_each_other(launch):
    one = launch(STEP, workers=2)
    first = Path(one.run)
    one.pids(2)
    two = launch(STEP, workers=2, where="b")
    second = Path(two.run)
    two.pids(2)
    assert first != second
    assert first.exists()
    two.touch("go")
    assert two.wait()[0] == 0
    assert first.exists()
    assert not second.exists()
    goes_on(one, 0, 1)
    one.touch("go")
    assert one.wait()[0] == 0
    assert not first.exists()


def test_a_stopped_worker_holds_up_nobody(launch):
    one = launch(STEP, workers=3)
    pids = one.pids(3)
    os.kill(pids[1], signal.SIGSTOP)
    goes_on(one, 0, 2)
    paused = until(lambda: one.events("paused"), "that it stands still is recorded, with the way on")[0]
    assert paused["worker"] == 1
    assert f"kill -CONT {pids[1]}" in paused["detail"]
    os.kill(pids[2], signal.SIGKILL)
    until(lambda: one.events("death"), "a death is noticed while another worker stands still")
    assert [e["worker"] for e in one.events("death")] == [2]
    os.kill(pids[1], signal.SIGCONT)
    goes_on(one, 0, 1)
    until(lambda: [e["worker"] for e in one.events("resumed")] == [1], "that it goes on is recorded")
    one.touch("go")
    assert one.wait()[0] == 1


def test_a_stopped_worker_cannot_outlive_ctrl_c(launch):
    one = launch(STEP, "--grace", "0.2", workers=1)
    pid = one.pid(0)
    os.kill(pid, signal.SIGSTOP)
    one.process.send_signal(signal.SIGINT)
    assert one.wait()[0] == 130
    assert not alive(pid)


def test_the_lifeline_ends_a_child_where_the_kernel_does_not():
    read, write = os.pipe()
    program = f"from easgd.engines.local.child import follow_pipe; follow_pipe({read}); print('up', flush=True)\n"
    program += "import time; time.sleep(3600)"
    child = subprocess.Popen([sys.executable, "-c", program], pass_fds=[read], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"up\n"
    assert child.poll() is None
    os.close(write)
    assert child.wait(timeout=DEADLINE) == -signal.SIGKILL
    child.stdout.close()
    os.close(read)


def test_a_process_does_not_drop_the_lock_of_its_own_run(tmp_path):
    run = rundir.OwnedRun(RunRequest(["script"], 1, rundir.new_id("test"), tmp_path))
    try:
        # Probing closes a descriptor of the owner file; of one's own, that would drop the lock.
        rundir.live_runs()
        assert rundir.clean_stale() == [] or run.path.exists()
        probe = f"from easgd.launch import run_directory as d; d.clean_stale(); print({run.id!r} in d.live_runs())"
        done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
        assert done.stdout == "True\n"
    finally:
        run.close()
    assert not run.path.exists()


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / "easgd"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    monkeypatch.setattr(rundir, "base", lambda: folder)
    with pytest.raises(rundir.SettingError, match="belong to you alone"):
        rundir.OwnedRun(RunRequest(["script"], 1, rundir.new_id("test"), tmp_path))
