"""A shard of the center, without Ray: at most once, membership-backs, rounds, snapshots; over a real socket too."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time

import pytest
import torch

import easgd
from easgd.center.client import JoinRequest
from easgd.center.layout import Layout
from easgd.center.whole import Center
from easgd.engines.ray import client, sockets
from easgd.engines.ray import shard as shards
from easgd.engines.ray.client import RayCenterClient
from easgd.engines.ray.membership import Membership, bounds_for
from easgd.engines.ray.messages import Kind, LinkError, Request, Status
from easgd.engines.ray.shard import Shard
from easgd.engines.ray.sockets import MAGIC, REQUEST, SocketLink, SocketServer
from easgd.engines.ray.transport import PendingRequest, Transport
from easgd.errors import UnreachableError

N = 3000
ELASTIC = easgd.EASGD(period=1, moving_rate=0.5)


def ask(shard, rank, sequence, vector=None, kind=Kind.EXCHANGE, incarnation=0, scale=0.5, pace=0.0):
    message = None if vector is None else shard.codec.encode(vector).clone()
    reply, answer = shard.exchange(Request("center", rank, incarnation, sequence, kind, scale, 0, pace), message)
    return Status(reply.status), reply, answer


def floats(answer):
    return answer.view(torch.float32)


def enroll(shard, members, dead):
    shard.enroll(shard.serial + 1, members, dead)


def make(method=ELASTIC, codec=None, start=None):
    shard = Shard(method, codec, method.center_slots(torch.zeros(N) if start is None else start))
    enroll(shard, [0, 1], {})
    return shard


def test_an_exchange_by_hand():
    shard = make()
    status, reply, d = ask(shard, 0, 0, torch.full((N,), 8.0))
    assert (status, reply.version, reply.living) == (Status.DONE, 1, 2)
    assert floats(d).tolist() == [4.0] * N, "d = α(x − x̃) = 0.5·(8 − 0)"
    assert shard.center.slots["x"].tolist() == [4.0] * N


def test_asked_again_it_answers_the_same_and_applies_nothing():
    shard = make()
    _, _, first = ask(shard, 0, 0, torch.full((N,), 8.0))
    first = first.clone()
    ask(shard, 1, 0, torch.full((N,), 100.0))
    before = shard.center.slots["x"].clone()
    status, _, again = ask(shard, 0, 0, torch.full((N,), 8.0))
    assert status == Status.DONE
    assert torch.equal(first, again)
    assert torch.equal(shard.center.slots["x"], before)
    assert shard.version == 2


def settled(method=ELASTIC, members=(0, 1, 2)):
    """A guarded shard on which all workers are at a distance of about 1."""
    shard = Shard(method, None, method.center_slots(torch.ones(N)), guard=30.0)
    enroll(shard, list(members), {})
    for sequence in range(3):
        for rank in members:
            near = shard.center.x + N**-0.5 if method is ELASTIC else torch.full((N,), N**-0.5)
            assert ask(shard, rank, sequence, near, scale=0.1)[0] == Status.DONE
    return shard


@pytest.mark.parametrize("kind", [Kind.EXCHANGE, Kind.PUSH, Kind.TOGETHER])
@pytest.mark.parametrize("method", [ELASTIC, easgd.Downpour()], ids=["easgd", "downpour"])
def test_a_worker_that_diverged_is_refused_with_distance_and_bound(kind, method):
    shard = settled(method, members=(0, 1) if kind != Kind.TOGETHER else (0,))
    before = shard.center.x.clone()
    status, reply, _ = ask(shard, 0, 3, torch.full((N,), 1e7), kind=kind, scale=0.1)
    assert status == Status.REFUSED
    assert reply.update_sqnorm**0.5 == pytest.approx(1e7 * N**0.5, rel=1e-3)
    assert 10 < reply.bound < 60
    assert torch.equal(shard.center.x, before)
    assert ask(shard, 0, 4, shard.center.x + 1e-3 if method is ELASTIC else torch.zeros(N), scale=0.1)[0] == Status.DONE


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


def test_the_slowest_pace_is_told_until_its_worker_is_gone():
    shard = make()
    told = [ask(shard, rank, n, torch.ones(N), pace=pace)[1].slowest for rank, n, pace in ((0, 0, 2.0), (1, 0, 7.0))]
    assert told == [2.0, 7.0]
    enroll(shard, [0], {1: 0})
    assert ask(shard, 0, 1, torch.ones(N), pace=3.0)[1].slowest == 3.0


def test_a_round_agrees_on_the_largest_pace():
    shard, told = make(), {}

    def meet(rank, pace):
        told[rank] = ask(shard, rank, 0, torch.ones(N), Kind.TOGETHER, pace=pace)[1].slowest

    other = threading.Thread(target=meet, args=(1, 46.0))
    other.start()
    meet(0, 59.0)
    other.join(60)
    assert told == {0: 59.0, 1: 59.0}
    # asked again, the answer is that of the round, whatever others have brought since
    assert ask(shard, 1, 0, torch.ones(N), Kind.TOGETHER, pace=99.0)[1].slowest == 59.0


def test_an_older_incarnation_is_refused():
    shard = make()
    assert ask(shard, 0, 0, torch.ones(N), incarnation=1)[0] == Status.DONE
    before = shard.center.slots["x"].clone()
    assert ask(shard, 0, 5, torch.ones(N), incarnation=0)[0] == Status.ZOMBIE
    assert torch.equal(shard.center.slots["x"], before)
    enroll(shard, [1], {0: 1})
    assert ask(shard, 0, 1, torch.ones(N), incarnation=1)[0] == Status.ZOMBIE, "it is known to be dead"


def test_a_message_that_comes_after_its_worker_has_left_is_not_applied_again():
    """Case 34. The link was cut, the exchange was repeated over another connection, and now the first one arrives."""
    shard = make()
    ask(shard, 0, 5, torch.full((N,), 8.0))
    enroll(shard, [1], {})
    assert shard.ledger.entries[0, 0].answer is None
    assert shard.hold() == {}, "no snapshot waits for it"
    shard.take()
    assert ask(shard, 0, 5, torch.full((N,), 8.0))[0] == Status.LOST
    assert shard.version == 1
    enroll(shard, [0, 1], {})
    assert ask(shard, 0, 6, torch.full((N,), 8.0))[0] == Status.DONE, "it has attached again, and counts on"


@pytest.mark.parametrize("codec", [None, "bf16", "int8"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize("method", [ELASTIC, easgd.Downpour()])
def test_what_is_not_finite_does_not_enter(codec, bad, method):
    shard = make(method, codec)
    vector = torch.ones(N)
    vector[7] = bad
    status, reply, answer = ask(shard, 0, 0, vector)
    assert (status, reply.version, answer) == (Status.REFUSED, 0, None)
    assert shard.center.slots["x"].abs().max() == 0


def test_a_rolled_back_shard_says_so_and_applies_nothing_twice():
    shard = make()
    ask(shard, 0, 0, torch.ones(N))
    ask(shard, 0, 1, torch.ones(N))
    saved = shard.state()
    ask(shard, 0, 2, torch.ones(N))
    again = make()
    again.load(saved)
    assert (again.version, again.epoch) == (2, 1)
    before = again.center.slots["x"].clone()
    status, reply, _ = ask(again, 0, 1, torch.ones(N))
    assert (status, reply.epoch) == (Status.LOST, 1), "it is in the checkpoint; its answer is not"
    assert torch.equal(again.center.slots["x"], before)
    assert ask(again, 0, 2, torch.ones(N))[0] == Status.DONE, "what came after the checkpoint is applied anew"
    assert not torch.equal(again.center.slots["x"], before)


@pytest.mark.parametrize("codec", ["bf16", "int8"])
def test_compressed_the_sum_of_worker_and_center_is_conserved(codec):
    shard = make(codec=codec, start=torch.randn(N, generator=torch.Generator().manual_seed(0)))
    x = torch.randn(N, generator=torch.Generator().manual_seed(1))
    whole = (x + shard.center.slots["x"]).clone()
    for sequence in range(20):
        _, _, packed = ask(shard, 0, sequence, x)
        x -= shard.codec.decode(packed, N)
    torch.testing.assert_close(x + shard.center.slots["x"], whole, rtol=0, atol=2e-5)
    assert (x - shard.center.slots["x"]).abs().max() < 0.02, "and the spring has pulled them together"


def test_a_synchronous_round_by_hand():
    """x = 8 and x = 4 from x̃ = 0, α = 1/4: d = 2 and 1, x̃ = 3."""
    shard, answers = make(), {}

    def worker(rank, value):
        answers[rank] = ask(shard, rank, 0, torch.full((N,), value), Kind.TOGETHER, scale=0.25)

    threads = [threading.Thread(target=worker, args=pair) for pair in ((0, 8.0), (1, 4.0))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [floats(answers[rank][2])[0].item() for rank in (0, 1)] == [2.0, 1.0]
    assert (shard.center.slots["x"][0].item(), shard.version) == (3.0, 1)


def test_a_round_goes_on_without_the_dead(monkeypatch):
    monkeypatch.setattr(shards, "WAIT_SECONDS", 0.01)
    shard, told_to_wait, done = make(), threading.Event(), threading.Event()

    def worker():
        while ask(shard, 0, 0, torch.full((N,), 8.0), Kind.TOGETHER, scale=0.25)[0] == Status.WAIT:
            told_to_wait.set()
        done.set()

    thread = threading.Thread(target=worker, daemon=True)
    thread.start()
    assert told_to_wait.wait(60)
    assert not done.is_set(), "the other one has not come"
    enroll(shard, [0], {1: 0})
    assert done.wait(60)
    assert shard.center.slots["x"][0].item() == 2.0


def test_a_snapshot_over_two_shards_has_whole_exchanges_only():
    """Worker 0 has reached shard a but not shard b: the snapshot waits for its other half, and holds up the next."""
    a, b = make(), make()
    ask(a, 0, 0, torch.ones(N))
    target = {}
    for shard in (a, b):
        for rank, at in shard.hold().items():
            target[rank] = max(at, target.get(rank, at))
    states = {}
    takers = [
        threading.Thread(target=lambda n=n, s=s: states.update({n: s.take(target)})) for n, s in (("a", a), ("b", b))
    ]
    for taker in takers:
        taker.start()
    ask(b, 0, 0, torch.ones(N))
    for taker in takers:
        taker.join(60)
    assert [states[n]["version"] for n in "ab"] == [1, 1]
    assert all(states[n]["whole"] for n in "ab")
    assert ask(a, 0, 1, torch.ones(N))[0] == Status.DONE, "exchanges go on"


def test_bounds():
    assert bounds_for(1000, 4) == [(0, 1000)]
    cut = bounds_for(1_000_003, 3)
    assert cut[0][0] == 0
    assert cut[-1][1] == 1_000_003
    assert all(left[1] == right[0] for left, right in itertools.pairwise(cut))
    assert all(a % 1024 == 0 for a, _ in cut)


def test_an_announcement_that_comes_late_is_ignored():
    """Whole lists of members are sent, and a threaded actor may see them in any order: the newest counts."""
    shard = make()
    ask(shard, 2, 0, torch.ones(N))
    shard.enroll(7, [0, 1, 2], {})
    shard.enroll(6, [0, 1], {})
    _, reply, first = ask(shard, 2, 1, torch.ones(N))
    assert reply.living == 3
    version = shard.version
    assert torch.equal(ask(shard, 2, 1, torch.ones(N))[2], first), "its entry in the ledger is still there"
    assert shard.version == version, "so a retry is not applied twice"


def test_membership():
    membership = Membership(1)
    header = {"size": 10}
    assert membership.open(0, 0, header)
    assert not membership.open(1, 0, header)
    membership.mark_dead(0, 0)
    assert membership.open(1, 0, header), "the next brings the start value when the first has died"
    assert not membership.join(0, 0), "a dead one does not come back"
    assert membership.join(0, 1)
    assert membership.join(1, 0)
    assert (membership.members(), membership.missing(3)) == ([0, 1], 1)
    assert [membership.holder(), Membership.load(membership.dump()).members()] == [0, [0, 1]]
    membership.leave(0, 1)
    assert membership.holder() == 1


@pytest.fixture
def served():
    shard = make()
    server = SocketServer("127.0.0.1", b"s" * 32, shard.exchange, lambda center: 4 * N)
    yield shard, server.address
    server.listener.close()


def test_over_a_socket(served):
    _, address = served
    link, into = SocketLink(address, b"s" * 32), torch.empty(4 * N, dtype=torch.uint8)
    for sequence in range(3):
        message = torch.full((N,), 8.0).view(torch.uint8)
        link.send(Request("center", 0, 0, sequence, Kind.EXCHANGE, 0.5), message)
        reply, size = link.receive(60.0, into)
        assert (reply.status, reply.version, size) == (Status.DONE, sequence + 1, 4 * N)
    assert into.view(torch.float32)[0].item() == 1.0, "4, 2, 1"
    link.close()


def test_a_wrong_secret_is_refused(served):
    with pytest.raises(LinkError, match="refused"):
        SocketLink(served[1], b"x" * 32)


def test_the_server_tells_a_stranger_nothing(served):
    """Case 22: who cannot prove to know the secret gets no proof of the shard either, and is not listened to."""
    shard, address = served
    with socket.create_connection(address, 60) as stranger:
        theirs = stranger.recv(sockets.CHALLENGE, socket.MSG_WAITALL)
        stranger.sendall(b"c" * sockets.CHALLENGE + sockets.prove(b"x" * 32, b"worker", theirs, b"c" * 32))
        assert stranger.recv(1) == b"", "closed"
    assert shard.version == 0


def test_a_worker_talks_to_nobody_who_does_not_know_the_secret():
    """Case 22: a server that lets everybody in, and cannot prove to know the secret, gets no message."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def pretend():
            sock, _ = listener.accept()
            with sock:
                sock.sendall(b"s" * sockets.CHALLENGE)
                sock.recv(sockets.CHALLENGE + sockets.PROOF, socket.MSG_WAITALL)
                sock.sendall(b"p" * sockets.PROOF)

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(LinkError, match="does not know the run's secret"):
            SocketLink(listener.getsockname()[:2], b"s" * 32)
        thread.join(60)


def test_slow_strangers_and_many_of_them_do_not_keep_a_worker_out(served, monkeypatch):
    """Case 35: each sends a byte now and then, which begins a socket's own timeout anew; more than may wait come."""
    monkeypatch.setattr(sockets, "HANDSHAKE_SECONDS", 0.5)
    strangers = [socket.create_connection(served[1], 60) for _ in range(sockets.MOST_STRANGERS + 20)]
    for _ in range(10):
        for stranger in strangers[:4]:
            with contextlib.suppress(OSError):
                stranger.sendall(b"x")
        time.sleep(0.1)
    for stranger in strangers[:4]:
        stranger.settimeout(60)
        with contextlib.suppress(ConnectionResetError):
            assert len(stranger.recv(100, socket.MSG_WAITALL)) == sockets.CHALLENGE, "the challenge, and the end"
    monkeypatch.setattr(sockets, "HANDSHAKE_SECONDS", 60.0)
    SocketLink(served[1], b"s" * 32).close()
    for stranger in strangers:
        stranger.close()


def test_a_process_without_descriptors_serves_again_when_it_has_some(served, monkeypatch):
    """Case 35: accept fails for a while, as it does when strangers have taken every descriptor."""
    listener = next(thread for thread in threading.enumerate() if thread.name == "easgd-accept")
    assert listener.is_alive()
    failed = threading.Event()

    class Exhausted:
        def __init__(self, real):
            self.real = real

        def accept(self):
            failed.set()
            raise OSError(24, "Too many open files")

        def __getattr__(self, name):
            return getattr(self.real, name)

    server = SocketServer("127.0.0.1", b"s" * 32, served[0].exchange, lambda center: 4 * N)
    server.listener, real = Exhausted(server.listener), server.listener
    SocketLink(server.address, b"s" * 32).close()  # the accept that was under way already
    assert failed.wait(60)
    server.listener = real
    SocketLink(server.address, b"s" * 32).close()
    real.close()


def test_a_held_shard_lets_no_new_exchange_in(monkeypatch):
    """Between the two halves of a snapshot the shards stay as far as they are."""
    monkeypatch.setattr(shards, "WAIT_SECONDS", 0.05)
    shard = make()
    ask(shard, 0, 0, torch.ones(N))
    shard.hold()
    before = shard.center.x.clone()
    assert ask(shard, 0, 1, torch.ones(N))[0] == Status.WAIT
    assert ask(shard, 1, 0, torch.ones(N))[0] == Status.WAIT
    assert torch.equal(shard.center.x, before)
    shard.take()
    assert ask(shard, 0, 1, torch.ones(N))[0] == Status.DONE


@pytest.mark.parametrize("frame", [b"\x80\x04garbage" * 20, REQUEST.pack(MAGIC, 0, 0, 0, 0, 0.5, 0, 0.0, 0, 1 << 60)])
def test_what_is_no_message_ends_the_connection_and_nothing_else(served, frame):
    shard, address = served
    link = SocketLink(address, b"s" * 32)
    link.socket.sendall(frame)
    with pytest.raises(LinkError, match=r"closed|reset"):
        link.receive(60.0, torch.empty(8, dtype=torch.uint8))
    link.close()
    stranger = socket.create_connection(address)
    stranger.sendall(frame)
    stranger.close()
    assert SocketLink(address, b"s" * 32)
    assert shard.version == 0


def test_a_dead_server_is_seen_at_once(served):
    link = SocketLink(served[1], b"s" * 32)
    link.socket.shutdown(socket.SHUT_RDWR)
    with pytest.raises(LinkError):
        link.receive(60.0, torch.empty(8, dtype=torch.uint8))


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


def test_time_does_not_count_while_a_message_still_leaves(monkeypatch):
    """On a slow link the kernel sends for seconds after it has taken the message."""
    ours, theirs = socket.socketpair()
    left = iter([300, 200, 100])

    def unsent(_):
        if (bytes_ := next(left, None)) is None:
            theirs.sendall(b"an answer")
        return bytes_ or 0

    monkeypatch.setattr(sockets, "_unsent", unsent)
    with ours, theirs:
        sockets._await(ours, 0.01)
        assert ours.recv(100) == b"an answer"
        left = iter([100, 100])
        with pytest.raises(TimeoutError):
            sockets._await(ours, 0.01)


def test_what_the_other_end_has_not_read_is_unsent():
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
        with ours, theirs:
            ours.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                while True:
                    ours.send(bytes(1 << 20))
            assert sockets._unsent(ours) > 0
