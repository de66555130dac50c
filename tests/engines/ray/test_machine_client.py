"""A center in a machine's memory, tied to a shard of the run's: both springs by hand, and who carries when."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from test_transport import Direct

import easgd
from easgd.center.client import JoinRequest
from easgd.center.layout import Layout
from easgd.engines.local.control import Control
from easgd.engines.ray import uplink
from easgd.engines.ray.client import RayCenterClient
from easgd.engines.ray.machine_client import MachineClient
from easgd.engines.ray.transport import Transport
from easgd.errors import CenterLostError, SettingError, UnreachableError
from easgd.launch.run_directory import MachineDirectory, live_runs, stale_runs
from launching import until
from shards_by_hand import N, make

NEVER = 10**9
COORDINATOR = SimpleNamespace(join=lambda *_: 2, leave=lambda *_, **__: None)


@pytest.fixture(autouse=True)
def _memory(tmp_path, monkeypatch):
    monkeypatch.setenv("EASGD_SHARED", str(tmp_path))
    # Workers of one process share its record locks: each would find the others' lives open.
    monkeypatch.setattr(Control, "mark_killed", lambda self, own: None)


def on_machine(shard, method, ranks=(0, 1), period=NEVER, node="a"):
    """The clients of a machine's workers."""
    layout = Layout(("x",), ((N,),), ((1,),), ("torch.float32",))
    found = []
    for rank in ranks:
        request = JoinRequest(method, torch.full((N,), 7.0), layout, rank, machine_period=period)
        transport = Transport("center", rank, 0, [(0, N)], lambda k: Direct(shard))
        upper = RayCenterClient(COORDINATOR, [], transport, request)
        upper.snapshot = lambda: {"x": shard.center.x.clone()}
        client = MachineClient(upper, request, MachineDirectory("run", node))
        client.join(0)
        found.append(client)
    return found


def vector(value):
    return torch.full((N,), float(value))


def value(tensor):
    assert torch.equal(tensor, tensor[:1].expand(N))
    return float(tensor[0])


def machine(client):
    return value(client.snapshot()["x"])


def test_both_springs_by_hand():
    """α = 1/2 on both levels. The machine starts at the run's center, not at its worker's own point."""
    shard = make(easgd.EASGD(period=1, moving_rate=0.5))
    one, two = on_machine(shard, easgd.EASGD(period=1, moving_rate=0.5))
    assert machine(one) == 0
    assert value(one.exchange(vector(1), 0.5)) == 0.5
    assert value(two.exchange(vector(1), 0.5)) == 0.25
    assert (machine(one), value(shard.center.x)) == (0.75, 0)
    one.uplink.carry()
    assert (machine(one), value(shard.center.x)) == (0.375, 0.375)
    assert one.bytes_sent == 2 * 4 * N + one.upper.bytes_sent
    assert two.bytes_sent == 0


def test_the_answer_is_subtracted_from_what_the_machine_s_center_is_by_then():
    shard = make(easgd.EASGD(period=1, moving_rate=0.5))
    one, two = on_machine(shard, easgd.EASGD(period=1, moving_rate=0.5))
    one.exchange(vector(1), 0.5)
    ask, one.upper.exchange = one.upper.exchange, lambda x, scale: (two.exchange(vector(2.5), 0.5), ask(x, scale))[1]
    one.uplink.carry()
    # Copied at 0.5: D = 0.25. Meanwhile the other worker: 0.5 + 0.5·(2.5 − 0.5) = 1.5.
    assert (machine(one), value(shard.center.x)) == (1.25, 0.25)


def test_beta_is_shared_out_on_each_level():
    """β = 0.8; two of four workers are on this machine: α₁ = 0.4, α₂ = 0.8·2/4."""
    method = easgd.EASGD(period=1, beta=0.8)
    shard = make(method)
    one, two = on_machine(shard, method)
    assert (one.living, two.living) == (2, 2)
    one.exchange(vector(1), method.scale(0.1, one.living, 4))
    assert machine(one) == pytest.approx(0.4)
    one.upper.transport.living = 4
    one.uplink.carry()
    assert value(shard.center.x) == pytest.approx(0.4 * 0.4)


def test_a_machine_exchanges_when_each_of_its_workers_has_exchanged_t_times():
    method = easgd.EASGD(period=1, moving_rate=0.5)
    one, two = on_machine(make(method), method, period=2)
    two.uplink.exchanged = lambda: None  # record locks cannot tell two workers of one process apart
    for client in (one, two, two):
        client.exchange(vector(1), 0.5)
    assert not one.uplink._due.is_set()
    one.exchange(vector(1), 0.5)
    until(lambda: one.uplink.exchanges == 1, "the fourth exchange is the machine's turn")
    ((event, detail),) = one.events
    assert (event, detail.split(":")[0]) == ("machine", "exchange 1")


def test_the_last_worker_brings_the_rest_and_removes_the_memory():
    method = easgd.EASGD(period=1, moving_rate=0.5)
    shard = make(method)
    one, two = on_machine(shard, method)
    one.exchange(vector(1), 0.5)
    path = one.directory.path
    one.leave()
    assert path.exists()
    assert value(shard.center.x) == 0
    two.leave()
    assert value(shard.center.x) == 0.25
    assert not path.exists()


def test_memory_that_killed_workers_left_is_not_used_again():
    """Nobody holds it: the next worker starts the machine anew from the run's center."""
    method = easgd.EASGD(period=1, moving_rate=0.5)
    shard = make(method, start=vector(3))
    (one,) = on_machine(shard, method, (0,))
    one.exchange(vector(9), 0.5)
    assert live_runs() == {}
    assert stale_runs() == []
    # As the kernel does when a process is killed.
    from easgd.engines.local import client as local
    from easgd.launch import run_directory

    MachineDirectory._holders.clear()
    run_directory._OWNED.clear()
    local._MINE.clear()
    one.directory._owner.release(0)
    assert stale_runs() == [one.directory.path]
    (two,) = on_machine(shard, method, (0,))
    assert machine(two) == 3


def test_an_unanswered_machine_trains_on_and_says_so(monkeypatch):
    method = easgd.EASGD(period=1, moving_rate=0.5)
    (one,) = on_machine(make(method), method, (0,), period=1)
    monkeypatch.setattr(uplink, "PATIENCE", 1)

    def cut(x, scale):
        raise UnreachableError("shard 0 does not answer")

    one.upper.exchange = cut
    one.exchange(vector(1), 0.5)
    until(lambda: one.uplink._misses == 1, "the first miss is counted")
    one.exchange(vector(1), 0.5)
    until(lambda: one.uplink._misses == 2, "the second miss is counted")
    assert [event for event, _ in one.events] == ["unreachable", "unreachable"]
    with pytest.raises(CenterLostError, match="2 exchanges of the machine in a row"):
        one.exchange(vector(1), 0.5)


def test_rounds_and_turns_are_refused():
    method = easgd.EASGD(period=1, moving_rate=0.5)
    (one,) = on_machine(make(method), method, (0,))
    with pytest.raises(SettingError, match="schedule = sync"):
        one.exchange_together(vector(1), 0.5, 1.0)
    with pytest.raises(SettingError, match="schedule = round-robin"):
        one.wait_turn(1.0)
