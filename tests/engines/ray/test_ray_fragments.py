"""Fragments on shards of a cluster, in one process: a message meets only the shards that have a part of it."""

from __future__ import annotations

import threading

import pytest
import torch

import easgd

pytest.importorskip("ray")

from easgd.center.client import JoinRequest
from easgd.center.layout import Layout, fragment_bounds, fragment_cuts
from easgd.center.whole import Center
from easgd.compress import NAMES
from easgd.engines.ray.actor_link import joint_clocks
from easgd.engines.ray.client import RayCenterClient
from easgd.engines.ray.messages import LinkError
from easgd.engines.ray.shard import Shard
from easgd.engines.ray.transport import Transport

N, SHARDS = 10, [(0, 4), (4, 8), (8, 10)]
LAYOUT = Layout(("x",), ((N,),), ((1,),), ("torch.float32",))


class Direct:
    """A way to a shard of this process; the first `lost` answers get lost on the way."""

    def __init__(self, shard, lost=0):
        self.shard, self.lost, self.asked = shard, lost, 0

    def send(self, request, payload):
        self.asked += 1
        self.answer = self.shard.exchange(request, None if payload is None else payload.clone())

    def receive(self, seconds, into):
        if self.lost:
            self.lost -= 1
            raise LinkError("lost")
        reply, answer = self.answer
        size = 0 if answer is None else answer.numel()
        into[:size] = answer if size else into[:0]
        return reply, size

    def close(self):
        pass


def center(method, compression=None):
    fragments = fragment_bounds(N, method.fragments)
    shards = []
    for a, b in SHARDS:
        cuts = [(cut.start, cut.stop) for cut in fragment_cuts(a, b, fragments)]
        shards.append(Shard(method, compression, method.center_slots(torch.zeros(b - a)), cuts))
    return shards


def client(method, shards, rank=0, compression=None, lost=0):
    links = [Direct(shard, lost) for shard in shards]
    transport = Transport("center", rank, 0, SHARDS, lambda k: links[k])
    worker = RayCenterClient(
        None, [], transport, JoinRequest(method, torch.zeros(N), LAYOUT, rank, compression=compression)
    )
    return worker, links


def messages(seed, fragments):
    generator = torch.Generator().manual_seed(seed)
    bounds = fragment_bounds(N, fragments)
    for turn in range(4 * fragments):
        a, b = bounds[turn % fragments]
        yield turn % fragments, torch.randn(b - a, generator=generator)


@pytest.mark.parametrize("method", [easgd.EASGD(fragments=5), easgd.ADownpour(period=5, fragments=5)])
def test_shards_give_the_whole_centers_numbers(method):
    shards = center(method)
    worker, links = client(method, shards)
    whole = Center(method, method.center_slots(torch.zeros(N)))
    for f, message in messages(1, 5):
        expected = whole.parts[f].exchange(message.clone(), 0.3).clone()
        torch.testing.assert_close(worker.exchange(message.clone(), 0.3, f), expected)
        assert worker.updates(f) == whole.parts[f].version
    for name, slot in whole.slots.items():
        torch.testing.assert_close(torch.cat([shard.center.slots[name] for shard in shards]), slot)
    assert worker.version == whole.version == 20
    assert [link.asked for link in links] == [8, 8, 4], "fragments 0, 1 | 2, 3 | 4"
    assert joint_clocks([shard.state() for shard in shards]) == [part.clock for part in whole.parts]
    assert worker.bytes_sent == 2 * 4 * 4 * N, "four exchanges of every element, both ways"


def test_a_lost_answer_is_not_applied_twice():
    """Fragments of 5 cross two shards; every link loses its first two answers."""
    method = easgd.EASGD(fragments=2, moving_rate=0.5)
    shards = center(method)
    worker, _ = client(method, shards, lost=2)
    answer = worker.exchange(torch.ones(5), 0.5, 0)
    assert answer.tolist() == [0.5] * 5
    assert [shard.center.parts[0].version for shard in shards] == [1, 1, 0]


@pytest.mark.parametrize("codec", NAMES)
def test_rounding_is_remembered_fragment_by_fragment(codec):
    """What the workers subtract is what the center added, though it is rounded: no fragment's rest meets another."""
    method = easgd.EASGD(fragments=5, moving_rate=0.5)
    shards = center(method, codec)
    worker, _ = client(method, shards, compression=codec)
    total = torch.zeros(N)
    for f, message in messages(2, 5):
        a, b = fragment_bounds(N, 5)[f]
        total[a:b] += worker.exchange(message.clone(), 0.5, f)
    torch.testing.assert_close(torch.cat([shard.center.x for shard in shards]), total, rtol=0, atol=1e-6)


def test_a_round_is_a_meeting_also_of_workers_at_different_fragments():
    """Worker 1 joined later: it brings fragment 0 while worker 0 brings fragment 1; both rounds end."""
    method = easgd.EASGD(fragments=2, moving_rate=0.5, sync=True)
    shards = center(method)
    for shard in shards:
        shard.enroll(0, [0, 1], {})
    workers, answers = [client(method, shards, rank)[0] for rank in (0, 1)], {}

    def meet(rank):
        for turn in range(2):
            answers[rank, turn] = workers[rank].exchange_together(torch.ones(5), 0.5, 60.0, (1 - rank + turn) % 2)

    threads = [threading.Thread(target=meet, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {key: answer.tolist() for key, answer in answers.items()} == {
        (0, 0): [0.5] * 5, (1, 0): [0.5] * 5, (0, 1): [0.25] * 5, (1, 1): [0.25] * 5,
    }  # fmt: skip
    assert torch.cat([shard.center.x for shard in shards]).tolist() == [0.75] * N


def test_a_snapshot_does_not_wait_for_fragments_that_a_shard_has_no_part_of():
    method = easgd.EASGD(fragments=5, moving_rate=0.5)
    shards = center(method)
    worker, _ = client(method, shards)
    worker.exchange(torch.ones(2), 0.5, 0)
    target = {}
    for shard in shards:
        target.update(shard.hold())
    states = [shard.take(target, seconds=0.0) for shard in shards]
    assert all(state["whole"] for state in states)
    again = Shard(method, None, states[0]["slots"], states[0]["cuts"])
    again.load(states[0])
    assert (again.center.parts[0].version, again.center.parts[1].version, again.epoch) == (1, 0, 1)
    assert worker.exchange(torch.ones(2), 0.5, 0).tolist() == [0.25] * 2, "and exchanges go on"
