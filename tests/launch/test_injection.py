"""A plan of faults over a backend that only keeps lists: what happens when, and who comes back."""

from __future__ import annotations

import signal
import time

from test_launcher import Backend, launched

from easgd.faults import Fault


class Scripted(Backend):
    """Training begins at the first poll, and every poll is one second later; a signal ends a worker at the next."""

    def __init__(self, seconds):
        super().__init__()
        self.second, self.end, self.signals = -1, seconds, []

    def began(self):
        return None if self.second < 0 else time.monotonic() - self.second - 0.5

    def signal(self, rank, number):
        self.signals.append((self.second, rank, signal.Signals(number).name))

    def poll(self, seconds):
        killed = {rank for when, rank, name in self.signals if name == "SIGKILL" and when == self.second}
        self.second += 1
        self.plan = [[(rank, -9) for rank in killed & self.living.keys()]]
        if self.second >= self.end:
            self.plan = [[(rank, 0) for rank in self.living]]
        return super().poll(seconds)

    def start(self, rank):
        rank = max(self.incarnations, default=-1) + 1 if rank is None else rank
        return super().start(rank)


def test_a_plan_is_carried_out_in_its_order(capsys):
    plan = [
        Fault(1, 1.0, "death"), Fault(1, 4.0, "join"), Fault(0, 2.0, "pause", 3.0), Fault(2, 3.0, "join"),
        Fault(0, 6.0, "restart", 1.0), Fault(0, 2.0, "slow", 9.0), Fault(1, 99.0, "death"),
    ]  # fmt: skip
    backend = Scripted(10)
    launcher, _ = launched(backend, workers=2, restarts=3, faults=plan)
    assert backend.signals == [
        (1, 1, "SIGKILL"), (2, 0, "SIGSTOP"), (5, 0, "SIGCONT"), (6, 0, "SIGKILL")
    ]  # fmt: skip
    assert backend.incarnations == {0: 2, 1: 2, 2: 1}  # by the plan alone: no restart of the launcher's own
    events = [event for event in backend.event_log.events if event[0] in ("fault", "restart")]
    assert events == [("fault", 1), ("fault", 0), ("fault", 2), ("fault", 1), ("fault", 0), ("fault", 0), ("fault", 0)]
    assert [keep for rank, _, keep in backend.dead if rank == 1] == [True, False]
    assert launcher.exit_codes == {0: 0, 1: 0, 2: 0}


def test_a_run_whose_workers_are_all_dead_waits_for_the_one_that_joins():
    backend = Scripted(8)
    launched(backend, workers=1, faults=[Fault(0, 1.0, "death"), Fault(0, 5.0, "join")])
    assert backend.incarnations == {0: 2}


def test_a_run_that_has_ended_waits_for_nobody():
    backend = Scripted(3)
    launched(backend, workers=1, faults=[Fault(1, 50.0, "join")])
    assert backend.incarnations == {0: 1}


def test_a_join_that_is_due_with_the_death_waits_until_the_worker_has_ended():
    """A launcher on a busy machine looks late: half a second after its death the worker is still on its list."""
    backend = Scripted(8)
    launched(backend, workers=2, faults=[Fault(1, 1.0, "death"), Fault(1, 1.4, "join"), Fault(0, 1.5, "pause", 1.8)])
    assert backend.incarnations == {0: 1, 1: 2}
    assert backend.signals == [(1, 1, "SIGKILL"), (2, 0, "SIGSTOP"), (3, 0, "SIGCONT")]
