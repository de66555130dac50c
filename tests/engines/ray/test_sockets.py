"""The sockets between workers and shards: real connections, the shared secret, strangers, slow links."""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import pytest
import torch

from easgd import runtime
from easgd.engines.ray import sockets
from easgd.engines.ray.messages import Kind, LinkError, Request, Status
from easgd.engines.ray.sockets import CODECS, MAGIC, REQUEST, SocketLink, SocketServer
from shards_by_hand import N


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


def test_the_same_request_again_on_the_same_connection_has_the_same_answer(served):
    """Case 18: the message that asks again must not be written over the answer, which lies where the first one was."""
    shard, address = served
    link, into = SocketLink(address, b"s" * 32), torch.empty(4 * N, dtype=torch.uint8)
    message = torch.full((N,), 8.0).view(torch.uint8)
    for _ in range(3):
        link.send(Request("center", 0, 0, 0, Kind.EXCHANGE, 0.5), message)
        reply, _ = link.receive(60.0, into)
        assert (reply.status, reply.version) == (Status.DONE, 1)
        assert into.view(torch.float32).eq(4.0).all()
    assert shard.version == 1
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


def test_a_worker_s_own_proof_sent_back_to_it_proves_nothing():
    """Case 22: who does not know the secret can return what it was told; the two ends must say different things."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def reflect():
            sock, _ = listener.accept()
            with sock:
                sock.sendall(b"s" * sockets.CHALLENGE)
                said = sock.recv(sockets.CHALLENGE + sockets.PROOF, socket.MSG_WAITALL)
                sock.sendall(said[sockets.CHALLENGE :])

        thread = threading.Thread(target=reflect)
        thread.start()
        with pytest.raises(LinkError, match="does not know the run's secret"):
            SocketLink(listener.getsockname()[:2], b"s" * 32)
        thread.join(60)


def test_no_memory_is_taken_for_a_message_that_is_too_large(served, monkeypatch):
    """Case 35: the length that a frame claims is compared with what the shard expects before anything is allocated."""
    shard, address = served
    taken, empty = [], torch.empty
    monkeypatch.setattr(sockets.torch, "empty", lambda size, **more: taken.append(size) or empty(size, **more))
    link, into = SocketLink(address, b"s" * 32), torch.zeros(8, dtype=torch.uint8)
    name = b"center"
    link.socket.sendall(REQUEST.pack(MAGIC, 0, 0, 0, 0, 0.5, 0, 0.0, 0, False, len(name), 1 << 28) + name)
    with pytest.raises(LinkError, match=r"closed|reset"):
        link.receive(60.0, into)
    link.close()
    assert max(taken, default=0) <= 4 * N
    assert shard.version == 0


def test_a_handshake_has_a_deadline_however_slowly_it_goes_on(served, monkeypatch):
    """Case 35: a byte now and then begins a socket's own timeout anew; the timer does not."""
    broken_off, break_off = threading.Event(), sockets._break_off
    monkeypatch.setattr(sockets, "HANDSHAKE_SECONDS", 0.5)
    monkeypatch.setattr(sockets, "_break_off", lambda sock: (broken_off.set(), break_off(sock)))
    for _ in range(5):  # on a busy machine the socket's timeout may be first
        with socket.create_connection(served[1], 60) as stranger, contextlib.suppress(OSError):
            for _ in range(sockets.CHALLENGE):
                stranger.sendall(b"x")
                if broken_off.wait(0.1):
                    return
    pytest.fail("nobody has broken it off")


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


def head(codec=0, size=0):
    return REQUEST.pack(MAGIC, 0, 0, 0, Kind.EXCHANGE, 0.5, 0, 0.0, codec, False, 6, size) + b"center"


NO_MESSAGES = {
    "garbage": b"\x80\x04garbage" * 20,
    "longer than any": head(size=1 << 60),
    "a codec that is not known": head(codec=200),
    "too short for its codec": head(CODECS.index("int4"), 5) + bytes(5),
    "no message at all": head(),
}


@pytest.mark.parametrize("frame", NO_MESSAGES.values(), ids=NO_MESSAGES)
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


def test_time_does_not_count_while_a_message_still_leaves(monkeypatch):
    """On a slow link the kernel sends for seconds after it has taken the message."""
    ours, theirs = socket.socketpair()
    left = iter([300, 200, 100])

    def unsent(_):
        if (bytes_ := next(left, None)) is None:
            theirs.sendall(b"an answer")
        return bytes_ or 0

    monkeypatch.setattr(runtime.sockets, "unsent", unsent)
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
            assert runtime.sockets.unsent(ours) > 0
