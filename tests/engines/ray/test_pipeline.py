"""A large exchange chunk by chunk: the same numbers, and still all or nothing, at most once."""

from __future__ import annotations

import pytest
import torch

import easgd
from easgd.engines.ray import shard as shards
from easgd.engines.ray import sockets, updates
from easgd.engines.ray.messages import Kind, Request, Status
from easgd.engines.ray.shard import Shard
from easgd.engines.ray.sockets import SocketLink, SocketServer

N = 10_000
METHODS = {
    "easgd": easgd.EASGD(period=1, moving_rate=0.25),
    "averaged": easgd.averaged(easgd.EASGD(period=1, moving_rate=0.25)),
    "downpour": easgd.Downpour(),
    "mdownpour": easgd.MDownpour(momentum=0.5),
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Chunks that do not divide the message, and parts that do not divide the chunks."""
    monkeypatch.setattr(shards, "LEAST", 1)
    monkeypatch.setattr(sockets, "CHUNK", 4 * 3000)
    monkeypatch.setattr(updates, "CHUNK", 4 * 700)


def noise(seed):
    return torch.randn(N, generator=torch.Generator().manual_seed(seed))


def center(method, guard=0.0):
    one = Shard(method, None, method.center_slots(noise(100)), guard=guard)
    one.enroll(0, [0, 1], {})
    return one


def serve(one):
    counted = []

    def pipeline(*args):
        counted.append(one.pipeline(*args))
        return counted[-1]

    server = SocketServer("127.0.0.1", b"s" * 32, one.exchange, lambda center: 4 * N, pipeline)
    return SocketLink(server.address, b"s" * 32), server, counted


def request(sequence, rank=0, scale=0.25):
    return Request("center", rank, 0, sequence, Kind.EXCHANGE, scale)


def exchange(link, sequence, message, rank=0):
    into = torch.zeros(4 * N, dtype=torch.uint8)
    link.send(request(sequence, rank), message.view(torch.uint8))
    reply, size = link.receive(60.0, into)
    return reply, into[:size].view(torch.float32)


@pytest.mark.parametrize("name", METHODS)
def test_chunk_by_chunk_gives_the_numbers_of_the_whole(name):
    whole, parts = center(METHODS[name]), center(METHODS[name])
    link, server, counted = serve(parts)
    for sequence in range(3):
        message = noise(sequence)
        plain, expected = whole.exchange(request(sequence), message.clone().view(torch.uint8))
        reply, answer = exchange(link, sequence, message)
        assert torch.equal(answer, expected.view(torch.float32))
        assert reply._replace(update_sqnorm=0, waited=0) == plain._replace(update_sqnorm=0, waited=0)
        assert reply.update_sqnorm == pytest.approx(plain.update_sqnorm, rel=1e-5)
    for slot, vector in whole.center.slots.items():
        assert torch.equal(vector, parts.center.slots[slot])
    assert all(pipelined.begun for pipelined in counted)
    link.close()
    server.listener.close()


@pytest.mark.parametrize(("bad", "guard"), [(float("nan"), 0.0), (float("inf"), 30.0), (1e9, 30.0)])
@pytest.mark.parametrize("name", METHODS)
def test_a_bad_last_element_keeps_all_of_the_message_out(name, bad, guard):
    """Cases 14 and 15: nothing is applied and nothing answered before the whole message is judged."""
    one = center(METHODS[name], guard)
    link, server, counted = serve(one)
    for sequence in range(3):
        near = one.center.x + 1e-3 * noise(sequence) if name in ("easgd", "averaged") else 1e-3 * noise(sequence)
        assert exchange(link, sequence, near)[0].status == Status.DONE
    before = {slot: vector.clone() for slot, vector in one.center.slots.items()}
    message = noise(5)
    message[-1] = bad
    reply, answer = exchange(link, 3, message)
    assert (reply.status, reply.version, answer.numel()) == (Status.REFUSED, 3, 0)
    assert not counted[-1].begun
    for slot, vector in one.center.slots.items():
        assert torch.equal(vector, before[slot])
    link.close()
    server.listener.close()


def test_a_center_that_moved_while_the_message_arrived_is_measured_again():
    one, sent = center(METHODS["easgd"]), []
    pipelined = one.pipeline(request(0), 4 * N, lambda *head: sent.append(head), lambda data: sent.append(bytes(data)))
    message = noise(0)
    pipelined.arrived(message.view(torch.uint8))
    assert pipelined.distance() == pytest.approx(float(torch.dist(message, one.center.x)), rel=1e-5)
    one.exchange(request(0, rank=1), noise(1).view(torch.uint8))
    assert pipelined.distance() is None
    expected = 0.25 * (message - one.center.x)
    apart = float(torch.dist(message, one.center.x))
    reply, _ = one.exchange(request(0), message.view(torch.uint8), pipelined)
    pipelined.finish()
    assert reply.update_sqnorm == pytest.approx((0.25 * apart) ** 2, rel=1e-5)
    torch.testing.assert_close(torch.frombuffer(bytearray(b"".join(sent[1:])), dtype=torch.float32), expected)


def test_an_answer_that_breaks_off_is_given_again_and_applied_once():
    """Case 3: the sending thread fails after the first chunk; the exchange is in the ledger all the same."""
    one = center(METHODS["easgd"])

    def broken(data):
        raise ConnectionError("cut")

    pipelined = one.pipeline(request(0), 4 * N, lambda *head: None, broken)
    message = noise(0)
    expected = 0.25 * (message - one.center.x)
    pipelined.arrived(message.clone().view(torch.uint8))
    one.exchange(request(0), message.clone().view(torch.uint8), pipelined)
    with pytest.raises(ConnectionError):
        pipelined.finish()
    link, server, _ = serve(one)
    reply, answer = exchange(link, 0, message)
    assert (reply.status, one.version) == (Status.DONE, 1)
    torch.testing.assert_close(answer, expected)
    link.close()
    server.listener.close()


def test_an_exchange_that_fails_ends_the_sending_thread():
    one = center(METHODS["easgd"])
    pipelined = one.pipeline(request(0), 4 * N, lambda *head: None, lambda data: None)
    reply, _ = one.exchange(request(7), noise(0).view(torch.uint8))
    pipelined.begin(reply, noise(1).view(torch.uint8))
    pipelined.give_up()
    with pytest.raises(ConnectionError):
        pipelined.finish()


@pytest.mark.parametrize(
    ("what", "size"),
    [({"kind": Kind.PUSH}, 4 * N), ({"codec": "int8"}, N), ({"fragment": 9}, 4 * N), ({}, 4 * N - 4)],
)
def test_what_cannot_be_overlapped_goes_the_plain_way(what, size):
    assert center(METHODS["easgd"]).pipeline(request(0)._replace(**what), size, None, None) is None
