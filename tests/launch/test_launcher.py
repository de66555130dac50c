"""The launcher's state machine over a backend that only keeps lists: no process, no clock."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from easgd.launch.backend import Change, Ended
from easgd.launch.launcher import Launcher
from easgd.launch.target import exit_code, run_script


class Log:
    def __init__(self):
        self.events = []

    def write(self, event, worker, detail=""):
        self.events.append((event, worker))


class Backend:
    """Ends workers as `plan` says: for each poll, a list of (rank, exit code), or a callable."""

    run_id, out, where = "run-1", Path("."), ""

    def __init__(self, plan=(), joined=False, changes=(), alive=True):
        self.plan, self.joined, self._changes, self._alive = list(plan), joined, list(changes), alive
        self.event_log = Log()
        self.living: dict[int, int] = {}
        self.incarnations: dict[int, int] = {}
        self.dead: list[tuple[int, int, bool]] = []
        self.calls: list[str] = []

    def open(self):
        self.calls.append("open")

    def start(self, rank):
        rank = len(self.living) if rank is None else rank
        incarnation = self.incarnations.get(rank, 0)
        self.incarnations[rank], self.living[rank] = incarnation + 1, incarnation
        return rank, incarnation

    def poll(self, seconds):
        now = self.plan.pop(0) if self.plan else [(rank, 0) for rank in self.living]
        if callable(now):
            now = now() or []
        return [Ended(rank, self.living.pop(rank), code, f"code {code}") for rank, code in now]

    def mark_dead(self, rank, incarnation, *, keep_rank):
        self.dead.append((rank, incarnation, keep_rank))

    def changes(self):
        found, self._changes = self._changes, []
        return found

    def alive(self):
        return self._alive

    def interrupt_all(self):
        self.calls.append("interrupt")

    def kill_all(self):
        self.calls.append("kill")
        self.plan.insert(0, [(rank, -signal.SIGKILL) for rank in self.living])

    def final_centers(self):
        self.calls.append("center")
        return {}

    def close(self):
        self.calls.append("close")


def launched(backend, workers=2, **options):
    launcher = Launcher(backend, workers, **options)
    return launcher, launcher.run()


def test_all_leave():
    backend = Backend([[(1, 0)], [(0, 0)]])
    launcher, code = launched(backend)
    assert (code, launcher.exit_codes) == (0, {0: 0, 1: 0})
    assert backend.event_log.events == [("leave", 1), ("leave", 0)]
    assert backend.dead == [(1, 0, False), (0, 0, False)]
    assert backend.calls == ["open", "center", "close"]


def test_a_script_that_never_attaches_is_told_that_there_is_no_center(capsys):
    launched(Backend([]))
    assert "no worker called easgd.attach: each trained alone" in capsys.readouterr().err
    launched(Backend([[(1, 7)]]))
    assert "easgd.attach" not in capsys.readouterr().err, "a worker that died before it could has said why"


def test_a_death_costs_one_worker_and_decides_the_exit_code(capsys):
    launcher, code = launched(Backend([[(1, 7)]]))
    assert (code, launcher.exit_codes) == (7, {0: 0, 1: 7})
    assert "worker 1 died (code 7); 1 other goes on" in capsys.readouterr().err


def test_a_signal_is_exit_code_1(capsys):
    launcher, code = launched(Backend([[(0, -9), (1, -9)]]))
    assert (code, launcher.exit_codes) == (1, {0: -9, 1: -9})
    assert "all 2 workers died" in capsys.readouterr().err


def test_a_refused_instruction_is_explained_once(capsys):
    """Torch's bf16 dies so on virtual machines that announce more than they allow, and says nothing."""
    launched(Backend([[(0, -signal.SIGILL), (1, -signal.SIGILL)]]))
    assert capsys.readouterr().err.count("try ONEDNN_MAX_CPU_ISA=AVX512_CORE") == 1


def test_restarts_keep_the_rank_and_run_out():
    backend = Backend([[(1, 5)], [(1, 5)], [(1, 5)]])
    _, code = launched(backend, restarts=2)
    assert code == 5
    assert backend.dead[:3] == [(1, 0, True), (1, 1, True), (1, 2, False)]
    events = [event for event, rank in backend.event_log.events if rank == 1]
    assert events == ["death", "restart", "death", "restart", "death"]


def test_refused_settings_are_not_restarted():
    backend = Backend([[(0, 2)]])
    _, code = launched(backend, restarts=3)
    assert code == 2
    assert backend.dead[0] == (0, 0, False)


def test_a_signal_stops_and_a_second_one_kills():
    backend = Backend([lambda: signal.raise_signal(signal.SIGINT), list, lambda: signal.raise_signal(signal.SIGTERM)])
    launcher, code = launched(backend, grace=1e6)
    assert (code, launcher.signal) == (130, signal.SIGINT)
    assert backend.calls[:3] == ["open", "interrupt", "kill"]
    assert {event for event, _ in backend.event_log.events} == {"stopped"}
    assert backend.calls[-1] == "close"


def test_the_grace_period_ends_in_a_kill():
    backend = Backend([lambda: signal.raise_signal(signal.SIGINT)])
    assert launched(backend, grace=-1.0)[1] == 130
    assert backend.calls[:3] == ["open", "interrupt", "kill"]


def test_workers_of_a_killed_launcher_are_marked_dead():
    changes = [Change("join", 4, 0, "by another launcher"), Change("death", 4, 0, "its launcher was killed")]
    backend = Backend([[], [(0, 0), (1, 0)]], changes=changes)
    assert launched(backend)[1] == 0
    assert backend.event_log.events[:2] == [("join", 4), ("death", 4)]
    assert backend.dead[0] == (4, 0, False)


def test_a_joined_launcher_stops_at_the_runs_end(capsys):
    backend = Backend([[], [(0, 130)]], joined=True, alive=False)
    assert launched(backend, workers=1)[1] == 0
    assert backend.event_log.events == [("join", 0), ("stopped", 0)]
    assert "center" not in backend.calls, "the run's owner has it"
    assert "run-1 has ended" in capsys.readouterr().err


def test_an_error_kills_what_lives_and_closes():
    def fail():
        raise RuntimeError("poll")

    backend = Backend([fail])
    with pytest.raises(RuntimeError, match="poll"):
        launched(backend)
    assert not backend.living
    assert {event for event, _ in backend.event_log.events} == {"stopped"}
    assert backend.calls[-1] == "close"


def test_buffers_that_could_not_be_kept_are_one_line_and_no_success(monkeypatch, capsys):
    """Batch norm's counters go to shared memory at the very end, which may be full by then."""

    def full():
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("easgd.worker.open_workers.close_all", full)
    assert exit_code(lambda: None, __file__) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    ("end", "code"), [("sys.exit(main())", 3), ("sys.exit(0)", 3), ("sys.exit(5)", 5), ("sys.exit('no')", 1)]
)
def test_a_script_that_exits_by_itself_has_the_exit_code_of_one_that_just_ends(end, code, monkeypatch):
    """A worker that has diverged ends with 3, also if its script ends with `sys.exit(main())`, as many do."""
    monkeypatch.setattr("easgd.worker.open_workers.close_all", lambda: None)
    monkeypatch.setattr("easgd.worker.open_workers.APART", ["worker 1"])
    assert exit_code(lambda: exec(end, {"sys": sys, "main": lambda: None}), __file__) == code


def test_a_script_finds_its_rank_in_its_arguments(tmp_path, monkeypatch, capsys):
    """So that every worker can be given a folder of its own, in scripts that know nothing of ranks."""
    monkeypatch.setenv("EASGD_RANK", "2")
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "script.py").write_text("import sys; print(sys.argv[1:])")
    run_script(str(tmp_path / "script.py"), "--out=out-{rank}", "{rank}", "{other}")
    assert capsys.readouterr().out == "['--out=out-2', '2', '{other}']\n"
