"""Compressed exchanges between workers and shards: each worker its own codec, both ends the same values, faults."""

from __future__ import annotations

import threading

import pytest
import torch

import easgd

pytest.importorskip("ray")

from easgd.center.client import JoinRequest
from easgd.center.layout import Layout
from easgd.compress import NAMES, Codec
from easgd.engines.ray.client import RayCenterClient
from easgd.engines.ray.messages import Kind, LinkError, Request, Status
from easgd.engines.ray.shard import Shard
from easgd.engines.ray.transport import Transport

N = 3000
COARSE = ("int4", "int2", "topk")
ELASTIC = easgd.EASGD(period=1, moving_rate=0.25)
LAYOUT = Layout(("x",), ((N,),), ((1,),), ("torch.float32",))


class Direct:
    """A link to a shard of this process, which may be replaced; it may lose its next answers."""

    def __init__(self, shards):
        self.shards, self.lost, self.requests = shards, 0, []

    def send(self, request, payload):
        self.requests.append((request.codec, request.in_full, 0 if payload is None else payload.numel()))
        self.reply = self.shards[0].exchange(request, None if payload is None else payload.clone())

    def receive(self, seconds, into):
        if self.lost:
            self.lost -= 1
            raise LinkError("lost")
        reply, answer = self.reply
        size = 0 if answer is None else answer.numel()
        into[:size].copy_(answer if answer is not None else into[:0])
        return reply, size

    def close(self):
        pass


def client(link, codec, method=ELASTIC, rank=0):
    wire = Transport("center", rank, 0, [(0, N)], lambda k: link)
    return RayCenterClient(None, [], wire, JoinRequest(method, torch.zeros(N), LAYOUT, rank, compression=codec))


def shard(method=ELASTIC, start=None):
    one = Shard(method, None, method.center_slots(torch.zeros(N) if start is None else start))
    one.enroll(0, [0, 1], {})
    return one


def noise(seed):
    return torch.randn(N, generator=torch.Generator().manual_seed(seed))


def position(one, rank=0):
    return one.ledger.entries[rank, 0].position.value


@pytest.mark.parametrize("codec", COARSE)
def test_the_first_position_goes_in_full_and_then_its_changes(codec):
    shards = [shard()]
    link = Direct(shards)
    worker, x = client(link, codec), noise(0)
    assert torch.allclose(worker.exchange(x.clone(), 0.25), rounded(codec, 0.25 * x))
    worker.exchange(x + 0.01 * noise(1), 0.25)
    size = Codec.named(codec).bytes(N)
    assert link.requests == [(codec, True, 4 * N), (codec, False, size)]
    assert worker.bytes_sent == 4 * N + 3 * size
    assert torch.equal(worker.packing.positions[0, 0].value, position(shards[0]))


def rounded(codec, d):
    one = Codec.named(codec)
    return one.decode(one.encode(d), d.numel())


@pytest.mark.parametrize("codec", NAMES)
def test_the_sum_of_worker_and_center_is_conserved(codec):
    start, x = noise(0), noise(1)
    shards = [shard(start=start)]
    worker, whole = client(Direct(shards), codec), x + start
    for _ in range(300 if codec == "topk" else 30):
        x = x - worker.exchange(x.clone(), 0.25)
    torch.testing.assert_close(x + shards[0].center.x, whole, rtol=0, atol=5e-5)
    assert (x - shards[0].center.x).norm() < 0.1 * (noise(1) - start).norm(), "and the spring has pulled them together"


def test_workers_of_one_center_compress_each_in_its_own_way():
    """Six workers, six codecs, asynchronously and in rounds: what each subtracts is what the center has added."""
    shards = [shard()]
    shards[0].enroll(1, list(range(6)), {})
    workers = [client(Direct(shards), codec, rank=rank) for rank, codec in enumerate((None, *NAMES))]
    total = torch.zeros(N)
    for turn in range(3):
        for rank, worker in enumerate(workers):
            total += worker.exchange(noise(10 * turn + rank), 0.25)
    answers = {}

    def meet(rank):
        answers[rank] = workers[rank].exchange_together(noise(50 + rank), 0.1, 60.0).clone()

    threads = [threading.Thread(target=meet, args=(rank,)) for rank in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    total += sum(answers[rank] for rank in range(6))
    torch.testing.assert_close(shards[0].center.x, total, rtol=0, atol=1e-5)
    for rank, worker in enumerate(workers):
        assert not worker.packing.codec.coarse or torch.equal(
            worker.packing.positions[0, 0].value, position(shards[0], rank)
        )


@pytest.mark.parametrize("codec", COARSE)
def test_a_lost_answer_leaves_both_ends_with_the_same_value(codec):
    """Case 3: the message is sent again and neither its change nor its answer counts twice."""
    shards = [shard()]
    link = Direct(shards)
    worker = client(link, codec)
    for k in range(4):
        link.lost = k % 3
        worker.exchange(noise(k), 0.25)
        assert torch.equal(worker.packing.positions[0, 0].value, position(shards[0]))
    assert shards[0].version == 4


@pytest.mark.parametrize("codec", COARSE)
def test_a_shard_that_began_again_asks_for_the_position_in_full(codec):
    """Case 8: the checkpoint has x̃ and the ledger, not the positions; nothing is applied until they are known again."""
    shards = [shard()]
    link = Direct(shards)
    worker = client(link, codec)
    worker.exchange(noise(0), 0.25)
    again = shard()
    again.load(shards[0].state())
    shards[0] = again
    before = again.center.x.clone()
    answer = worker.exchange(noise(1), 0.25)
    assert [in_full for _, in_full, _ in link.requests] == [True, False, True]
    assert again.version == 2
    torch.testing.assert_close(again.center.x, before + answer)
    assert torch.equal(worker.packing.positions[0, 0].value, position(again))


@pytest.mark.parametrize("codec", COARSE)
def test_after_a_refusal_the_next_position_goes_in_full(codec):
    """Case 14: the worker may start anew from the center, and its position would be far from what the shard knows."""
    shards = [shard()]
    link = Direct(shards)
    worker = client(link, codec)
    worker.exchange(noise(0), 0.25)
    bad = noise(1)
    bad[7] = float("nan")
    before = shards[0].center.x.clone()
    assert worker.exchange(bad, 0.25) is None
    assert torch.equal(shards[0].center.x, before)
    worker.exchange(noise(2), 0.25)
    assert [in_full for _, in_full, _ in link.requests] == [True, True]
    # A worker that does not look at its message itself: the shard refuses it, and forgets what may not be finite.
    packed = Codec.named(codec).encode(bad)
    reply, _ = shards[0].exchange(Request("center", 0, 0, 10**9, Kind.EXCHANGE, 0.25, codec=codec), packed)
    assert reply.status == Status.REFUSED
    assert shards[0].ledger.entries[0, 0].position is None


@pytest.mark.parametrize("codec", COARSE)
def test_changes_carry_what_was_not_sent(codec):
    """DOWNPOUR: all that was pushed arrives in the sum, up to what the worker still owes."""
    shards, method = [shard(easgd.Downpour())], easgd.Downpour()
    worker, meant = client(Direct(shards), codec, method), torch.zeros(N)
    for k in range(30):
        worker.exchange(noise(k), 1.0)
        meant += noise(k)
    owed = worker.packing.feedback[0, 0].rest
    torch.testing.assert_close(shards[0].center.x + owed, meant, rtol=0, atol=1e-3)


@pytest.mark.parametrize("codec", [None, *NAMES])
@pytest.mark.parametrize("size", [0, 1, 100, 4 * N - 4, 4 * N + 4])
def test_a_message_of_the_wrong_length_is_refused_before_anything_is_read(codec, size):
    one = shard()
    with pytest.raises(ValueError, match="bytes: "):
        one.exchange(Request("center", 0, 0, 0, Kind.EXCHANGE, 0.5, codec=codec), torch.zeros(size, dtype=torch.uint8))
    assert (one.version, one.ledger.entries) == (0, {})


def test_an_answer_may_be_longer_than_in_float32():
    """One element takes 7 bytes in topk, and 5 in int8."""
    for codec in NAMES:
        method = easgd.EASGD(moving_rate=0.5)
        one = Shard(method, None, {"x": torch.zeros(1)})
        layout = Layout(("x",), ((1,),), ((1,),), ("torch.float32",))
        wire = Transport("center", 0, 0, [(0, 1)], lambda k, one=one: Direct([one]))
        worker = RayCenterClient(None, [], wire, JoinRequest(method, torch.zeros(1), layout, 0, compression=codec))
        assert worker.exchange(torch.ones(1), 0.5).item() == pytest.approx(0.5, rel=0.01)
