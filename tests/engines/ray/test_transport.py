"""A worker's exchanges over links that lose answers, or reach only some shards."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch

import easgd
from easgd.center.client import JoinRequest
from easgd.center.layout import Layout
from easgd.center.whole import Center
from easgd.engines.ray import client
from easgd.engines.ray.client import RayCenterClient
from easgd.engines.ray.messages import Kind, LinkError, Status
from easgd.engines.ray.sockets import SocketLink
from easgd.engines.ray.transport import PendingRequest, Transport
from easgd.errors import UnreachableError
from shards_by_hand import N, settled


class Direct:
    """A link to a shard of this process."""

    def __init__(self, shard):
        self.shard = shard

    def send(self, request, payload):
        self.reply = self.shard.exchange(request, None if payload is None else payload.clone())

    def receive(self, seconds, into):
        reply, answer = self.reply
        size = 0 if answer is None else answer.numel()
        into[:size].copy_(answer if answer is not None else into[:0])
        return reply, size

    def close(self):
        pass


def client_of(method, parts):
    bounds = [(k * N, (k + 1) * N) for k in range(len(parts))]
    wire = Transport("center", 0, 0, bounds, lambda k: Direct(parts[k]))
    n = N * len(parts)
    layout = Layout(("x",), ((n,),), ((1,),), ("torch.float32",))
    return RayCenterClient(None, [], wire, JoinRequest(method, torch.zeros(n), layout, 0))


def test_some_shards_refuse_a_change_and_it_is_not_sent_again(monkeypatch):
    """Two shards, one of which refuses its part: the worker goes on from x̃, or the other part would come twice."""
    method = easgd.Downpour()
    parts = [settled(method, members=(0,)), settled(method, members=(0,))]
    one = client_of(method, parts)
    monkeypatch.setattr(client, "_sequences", itertools.count(3))
    message = torch.cat([torch.full((N,), 1e-3), torch.full((N,), 1e9)])
    answer = one.exchange(message, 1.0)
    assert torch.equal(answer, torch.cat([part.center.x for part in parts]))
    assert [event for event, _ in one.events] == ["refused"]
    assert one.exchange(torch.full((2 * N,), 1e9), 1.0) is None
    assert str(one.refusal).startswith("distance 5.477e+10, bound ")


class Lossy:
    """A real link whose connection breaks after the first request has arrived, before its answer is read."""

    def __init__(self, link, shard):
        self.link, self.shard, self.version = link, shard, shard.version

    def send(self, request, payload):
        self.link.send(request, payload)

    def receive(self, seconds, into):
        while self.shard.version == self.version:
            pass  # until the center has applied it
        self.link.close()
        raise LinkError("the answer is lost")

    def close(self):
        self.link.close()


def test_a_lost_answer_is_asked_for_again_and_applied_once(served):
    shard, address = served
    opened = []

    def open_link(k):
        link = SocketLink(address, b"s" * 32)
        opened.append(link)
        return Lossy(link, shard) if len(opened) == 1 else link

    wire = Transport("center", 0, 0, [(0, N)], open_link)
    into = torch.empty(4 * N, dtype=torch.uint8)
    pending = PendingRequest(Kind.EXCHANGE, 0, 0, 0.5, None, {0: torch.full((N,), 8.0).view(torch.uint8)})
    reply, size = wire.deliver(pending, {0: into}, 60.0)[0]
    assert len(opened) == 2
    assert (reply.status, size, shard.version) == (Status.DONE, 4 * N, 1)
    assert shard.center.slots["x"].tolist() == [4.0] * N
    assert into.view(torch.float32).tolist() == [4.0] * N


class Silent:
    def __init__(self, k):
        raise LinkError("nobody there")


def test_an_exchange_that_was_not_answered_is_made_up_for(served):
    """DOWNPOUR: what was sent in vain is sent again under its number, and is not part of the next change twice."""
    shard, address = served
    shard.center = Center(easgd.Downpour(), shard.center.slots)
    reachable = False

    def open_link(k):
        return SocketLink(address, b"s" * 32) if reachable else Silent(k)

    wire = Transport("center", 0, 0, [(0, N)], open_link)
    layout = Layout(("x",), ((N,),), ((1,),), ("torch.float32",))
    worker = RayCenterClient(None, [], wire, JoinRequest(easgd.Downpour(), torch.zeros(N), layout, 0))
    pulled = torch.zeros(N)
    x = torch.full((N,), 3.0)
    client.RETRY_SECONDS, before = 0.1, client.RETRY_SECONDS
    with pytest.raises(UnreachableError):
        worker.exchange(x - pulled, 1.0)
    client.RETRY_SECONDS = before
    reachable = True
    x += 2.0
    answer = worker.exchange(x - pulled, 1.0)
    assert answer.tolist() == [5.0] * N
    assert shard.version == 2
    assert worker.events[0][0] == "reached"


def test_a_worker_that_leaves_brings_what_is_open_to_its_end(monkeypatch):
    """One of two shards did not answer: it gets its part before the worker is gone."""
    method = easgd.Downpour()
    parts, left = [settled(method, members=(0,)), settled(method, members=(0,))], []
    reachable = False
    worker = client_of(method, parts)
    worker.transport._open = lambda k: Direct(parts[k]) if reachable or k == 0 else Silent(k)
    worker.coordinator = SimpleNamespace(leave=lambda *_, seconds: left.append(seconds))
    monkeypatch.setattr(client, "_sequences", itertools.count(3))
    monkeypatch.setattr(client, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(Direct, "close", lambda self: None, raising=False)
    before = [part.version for part in parts]
    with pytest.raises(UnreachableError):
        worker.exchange(torch.full((2 * N,), 1e-3), 1.0)
    assert [part.version for part in parts] == [before[0] + 1, before[1]]
    reachable = True
    worker.leave()
    assert [part.version for part in parts] == [before[0] + 1, before[1] + 1]
    assert left
