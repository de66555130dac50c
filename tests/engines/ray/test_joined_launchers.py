"""How the owner of a run learns that workers of another launcher are gone: Ray's names, and the ranks that are held."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("ray")

from easgd import runtime
from easgd.engines.ray import backend
from easgd.engines.ray.backend import OwnedRayBackend
from easgd.engines.ray.pauses import Pauses


@pytest.fixture
def owner(monkeypatch):
    """A run's owner with a clock and names of actors that a test sets."""
    one = OwnedRayBackend.__new__(OwnedRayBackend)
    one.run_id, one.now, one.actors = "run", 0.0, set()
    one._own, one._foreign, one._gone, one._seen, one._missing = set(), set(), set(), set(), {}
    one._pauses = Pauses()
    one.supervisor = SimpleNamespace(copy={"held": {3: 0}, "memberships": {"c": {"incarnations": {}}}, "silent": []})

    def get_actor(name, namespace):
        if name not in one.actors:
            raise ValueError(name)

    monkeypatch.setattr(backend.ray, "get_actor", get_actor)
    monkeypatch.setattr(runtime.time, "monotonic", lambda: one.now)
    return one


def at(owner, now):
    owner.now = now
    return [change.event for change in owner.changes()]


def test_a_launcher_on_a_slow_link_has_time_to_make_its_worker(owner):
    assert at(owner, 0.0) == ["join"]
    assert at(owner, 10.0) == [], "its answer is still on the way"
    owner.actors.add("worker-3-0")
    assert at(owner, 11.0) == []


def test_a_worker_that_existed_is_missed_at_the_second_look(owner):
    owner.actors.add("worker-3-0")
    assert at(owner, 0.0) == ["join"]
    owner.actors.clear()
    assert at(owner, 5.0) == []
    assert at(owner, 5.5) == ["death"]
    assert at(owner, 6.0) == []


def test_a_worker_that_joined_between_two_looks_existed(owner):
    assert at(owner, 0.0) == ["join"]
    owner.supervisor.copy["memberships"]["c"]["incarnations"][3] = 0
    assert at(owner, 0.5) == ["death"]


def test_a_rank_that_nobody_uses_is_given_up_in_the_end(owner):
    assert at(owner, 0.0) == ["join"]
    assert at(owner, backend.START_SECONDS + 1.0) == ["death"]


def test_a_silent_worker_is_paused_once_and_resumes_unless_it_has_ended(owner, capsys):
    """Case 33."""
    owner._own.add((3, 0))
    owner.supervisor.copy["silent"] = [(3, 0, "17 on node-b")]
    assert at(owner, 0.0) == ["paused"]
    assert at(owner, 1.0) == []
    assert "on node-b, kill -CONT 17 lets it go on, kill -KILL 17 ends it" in capsys.readouterr().err
    owner.supervisor.copy["silent"] = []
    assert at(owner, 2.0) == ["resumed"]
    owner.supervisor.copy["silent"] = [(3, 0, "17 on node-b")]
    assert at(owner, 3.0) == ["paused"]
    owner.supervisor.copy.update(silent=[], held={3: 1})
    owner._own.add((3, 1))
    assert at(owner, 4.0) == [], "its next incarnation holds the rank"
