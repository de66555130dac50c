"""Messages to a shard over a socket of their own: twice Ray's pace between machines, and a dead peer is seen at once.

Nothing but fixed binary frames crosses it; nothing is unpickled. Both ends prove, before the first frame, that they
know the run's secret, which only Ray's own channel carries: each answers the other's random challenge with an HMAC.
What is sent is not encrypted: where Ray is told to encrypt, this way is not taken.

    request   magic, rank, incarnation, sequence, kind, scale, fragment, pace, codec, in full,
              bytes of the center's name, of the message
    reply     magic, status, version, epoch, living, update_sqnorm, waited, bound, slowest, bytes of the answer
"""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

from easgd.compress import NAMES
from easgd.engines.ray.messages import LinkError, Reply, Request, Status
from easgd.engines.ray.pipeline import CHUNK, PipelinedExchange, Send, SendBytes
from easgd.runtime import sockets, threading, time

MAGIC = b"EAS3"
REQUEST = struct.Struct("<4sIIqBdIdB?BQ")
REPLY = struct.Struct("<4sBqqIddddQ")
CHALLENGE, PROOF = 32, 32
HANDSHAKE_SECONDS = 5.0
MOST_STRANGERS = 128
"""Connections that have not proved yet that they know the secret; more wait in the kernel's queue."""
ACCEPT_PAUSE = 0.05

CODECS = (None, "float32", *NAMES)
"""A codec is sent as its place here: new ones are added at the end."""

Serve = Callable[..., tuple[Reply, Tensor | None]]
"""(request, message) -> (reply, answer); a third argument is what `Pipeline` returned."""
Pipeline = Callable[[Request, int, Send, SendBytes], PipelinedExchange | None]
Expected = Callable[[str], int | None]
"""How many bytes a message to a center has here; None if it has no such center."""


def prove(secret: bytes, who: bytes, one: bytes, other: bytes) -> bytes:
    """What only somebody who knows the secret can say to these two challenges."""
    return hmac.digest(secret, who + one + other, "sha256")


def _timeouts(sock: socket.socket, seconds: float) -> None:
    # In the kernel, not by `settimeout`: a blocking socket waits for a whole message in one call.
    value = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, value)


def _read(sock: socket.socket, into: memoryview) -> None:
    """Fill the memory, or raise."""
    at = 0
    while at < len(into):
        got = sock.recv_into(into[at:], 0, socket.MSG_WAITALL)
        if got == 0:
            raise ConnectionError("the other end has closed")
        at += got


def _await(sock: socket.socket, seconds: float) -> None:
    """Wait until there is something to read.

    The kernel takes megabytes that a slow link needs many seconds for: while they leave, the other end cannot answer,
    and time does not count.
    """
    before = sockets.unsent(sock)
    while not sockets.readable(sock, seconds):
        left = sockets.unsent(sock)
        if left >= before:
            raise TimeoutError("no answer")
        before = left


def _skip(sock: socket.socket, size: int) -> None:
    scratch = memoryview(bytearray(min(size, 1 << 20)))
    while size > 0:
        _read(sock, scratch[: min(size, len(scratch))])
        size -= len(scratch)


def _read_bytes(sock: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    _read(sock, memoryview(data))
    return bytes(data)


def _send_head(sock: socket.socket, reply: Reply, size: int) -> None:
    sock.sendall(REPLY.pack(MAGIC, *reply, size))


def _answer(sock: socket.socket, reply: Reply, answer: Tensor | None) -> None:
    _send_head(sock, reply, 0 if answer is None else answer.numel())
    if answer is not None:
        sock.sendall(answer.numpy().data)


def _break_off(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


class SocketLink:
    """One shard, by a socket."""

    def __init__(self, address: tuple[str, int], secret: bytes) -> None:
        try:
            self.socket = sockets.create_connection(address, HANDSHAKE_SECONDS)
        except OSError as error:
            raise LinkError(f"no connection to {address[0]}:{address[1]}: {error}") from error
        try:
            self.socket.settimeout(None)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _timeouts(self.socket, HANDSHAKE_SECONDS)
            mine, theirs = secrets.token_bytes(CHALLENGE), _read_bytes(self.socket, CHALLENGE)
            self.socket.sendall(mine + prove(secret, b"worker", theirs, mine))
            if not hmac.compare_digest(_read_bytes(self.socket, PROOF), prove(secret, b"shard", theirs, mine)):
                raise ConnectionError("the other end does not know the run's secret")
        except OSError as error:
            self.close()
            raise LinkError(f"refused by {address[0]}:{address[1]}: {error}") from error

    def send(self, request: Request, payload: Tensor | None) -> None:
        """Send the frame; the kernel may take it while the shard still reads."""
        name = request.center.encode()
        size = 0 if payload is None else payload.numel()
        head = REQUEST.pack(
            MAGIC, request.rank, request.incarnation, request.sequence, request.kind, request.scale, request.fragment,
            request.pace, CODECS.index(request.codec), request.in_full, len(name), size,
        )  # fmt: skip
        try:
            self.socket.sendall(head + name)
            if payload is not None:
                self.socket.sendall(payload.numpy().data)
        except OSError as error:
            raise LinkError(str(error)) from error

    def receive(self, seconds: float, into: Tensor) -> tuple[Reply, int]:
        """Wait for the reply; the answer goes straight into `into`."""
        try:
            _timeouts(self.socket, seconds)
            _await(self.socket, seconds)
            magic, *fields, size = REPLY.unpack(_read_bytes(self.socket, REPLY.size))
            if magic != MAGIC or size > into.numel():
                raise ConnectionError("not a reply")
            _read(self.socket, into.numpy().data[:size])
        except OSError as error:
            raise LinkError(str(error)) from error
        return Reply(*fields), size

    def close(self) -> None:
        self.socket.close()


class Buffers:
    """The memory of one connection's messages, in which their answers lie afterwards."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], tuple[int, Tensor]] = {}

    def take(self, center: str, fragment: int, sequence: int, size: int) -> Tensor:
        """Return memory for a message: that of the fragment's last one, if the worker has the answer to it.

        It has if it sends the fragment's next message. If it sends the same again, it asks for what lies there.
        """
        last, memory = self._last.get((center, fragment), (-1, torch.empty(0, dtype=torch.uint8)))
        if sequence <= last or memory.numel() < size:
            memory = torch.empty(size, dtype=torch.uint8)
        self._last[center, fragment] = (max(sequence, last), memory)
        return memory[:size]


class SocketServer:
    """Serves a process's shards to workers, one thread for each."""

    def __init__(
        self, host: str, secret: bytes, serve: Serve, expected: Expected, pipeline: Pipeline | None = None
    ) -> None:
        self.secret, self.serve, self.expected = secret, serve, expected
        self.pipeline = pipeline or (lambda *_: None)
        self.listener = sockets.create_server((host, 0), backlog=256)
        self._strangers = threading.Semaphore(MOST_STRANGERS)
        self.address: tuple[str, int] = self.listener.getsockname()[:2]
        threading.Thread(target=self._accept, name="easgd-accept", daemon=True).start()

    def _accept(self) -> None:
        while self.listener.fileno() >= 0:
            self._strangers.acquire()
            try:
                sock, _ = self.listener.accept()
                threading.Thread(target=self._guarded, args=(sock,), name="easgd-worker", daemon=True).start()
            except (OSError, RuntimeError):
                # No descriptor or thread is left: strangers may hold them all, and they lose theirs in a few seconds.
                self._strangers.release()
                time.sleep(ACCEPT_PAUSE)

    def _guarded(self, sock: socket.socket) -> None:
        """A worker that is gone, or does not belong here, ends its thread and nothing else."""
        try:
            if self._known(sock):
                _timeouts(sock, 0.0)
                self._converse(sock)
        except (OSError, ValueError, struct.error):
            pass
        finally:
            sock.close()

    def _known(self, sock: socket.socket) -> bool:
        """Whether the other end proves in time that it knows the secret.

        The timer bounds the handshake as a whole: a socket's timeout begins anew with every byte.
        """
        timer = threading.Timer(HANDSHAKE_SECONDS, _break_off, (sock,))
        timer.daemon = True
        timer.start()
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _timeouts(sock, HANDSHAKE_SECONDS)
            return self._admit(sock)
        finally:
            timer.cancel()
            self._strangers.release()

    def _admit(self, sock: socket.socket) -> bool:
        mine = secrets.token_bytes(CHALLENGE)
        sock.sendall(mine)
        theirs, proof = _read_bytes(sock, CHALLENGE), _read_bytes(sock, PROOF)
        if not hmac.compare_digest(proof, prove(self.secret, b"worker", mine, theirs)):
            return False
        sock.sendall(prove(self.secret, b"shard", mine, theirs))
        return True

    def _converse(self, sock: socket.socket) -> None:
        buffers = Buffers()
        while True:
            head: tuple[Any, ...] = REQUEST.unpack(_read_bytes(sock, REQUEST.size))
            magic, rank, incarnation, sequence, kind, scale, fragment, pace, codec, in_full, length, size = head
            if magic != MAGIC or codec >= len(CODECS):
                return
            center = _read_bytes(sock, length).decode()
            if (most := self.expected(center)) is None:
                _skip(sock, size)  # restarted, and not given its value back yet
                sock.sendall(REPLY.pack(MAGIC, *Reply(Status.BLANK), 0))
                continue
            if size > most:
                return  # not a message that any worker of this run would send
            message = buffers.take(center, fragment, sequence, size) if size else None
            request = Request(center, rank, incarnation, sequence, kind, scale, fragment, pace, CODECS[codec], in_full)
            pipelined = self.pipeline(request, size, partial(_send_head, sock), sock.sendall)
            if message is not None and pipelined is not None:
                self._serve_pipelined(sock, request, message, pipelined)
                continue
            if message is not None:
                _read(sock, message.numpy().data)
            _answer(sock, *self.serve(request, message))

    def _serve_pipelined(
        self, sock: socket.socket, request: Request, message: Tensor, pipelined: PipelinedExchange
    ) -> None:
        for at in range(0, message.numel(), CHUNK):
            chunk = message[at : at + CHUNK]
            _read(sock, chunk.numpy().data)
            pipelined.arrived(chunk)
        try:
            reply, answer = self.serve(request, message, pipelined)
        except BaseException:
            pipelined.give_up()
            raise
        if pipelined.begun:
            pipelined.finish()
        else:
            _answer(sock, reply, answer)  # refused, or answered before
