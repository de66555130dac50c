"""TCP between simulated processes: streams in order, of pieces that come late, break off, or stop without a word."""

from __future__ import annotations

import itertools
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from chaos.network import Network
from chaos.scheduler import Process, Scheduler, Thread
from easgd import runtime

HOST = "simulated"
PIECE = 1500
ROOM = 6000
"""Bytes that may be on their way or unread: whoever sends more waits."""

Address = tuple[str, int]


class Stream:
    """One direction of a connection."""

    def __init__(self, network: Network, source: str, target: str) -> None:
        self.network, self.scheduler, self.source, self.target = network, network.scheduler, source, target
        self.arrived, self.leaving = bytearray(), 0
        self.ended = self.reset = self.mute = False
        self._pieces: list[bytes] = []
        self._waiters: list[Thread] = []

    def changed(self) -> None:
        waiters, self._waiters = self._waiters, []
        for thread in waiters:
            self.scheduler.wake(thread)

    def wait(self, end: float | None) -> bool:
        """Wait until something has changed; False if the time is over first."""
        left = None if end is None else end - self.scheduler.now
        if left is not None and left <= 0:
            return False
        me = self.scheduler.me
        self._waiters.append(me)
        self.scheduler.block(left)
        if me in self._waiters:
            self._waiters.remove(me)
        return True

    def put(self, piece: bytes) -> None:
        """Send some bytes, or the end of the stream (none). Pieces may be delayed; their order stays."""
        self.leaving += len(piece)
        if not self.mute:
            self._pieces.append(piece)
            self.network.carry(self.source, self.target, self._arrive)

    def _arrive(self) -> None:
        if self.reset or not self._pieces:
            return
        piece = self._pieces.pop(0)
        self.leaving -= len(piece)
        self.arrived += piece
        self.ended |= not piece
        self.changed()

    def break_(self) -> None:
        """What has not arrived never does, and both ends hear of it."""
        self.reset, self._pieces = True, []
        self.changed()


class SimSocket:
    """What the engine uses of `socket.socket`, connected."""

    def __init__(self, process: Process, in_: Stream, out: Stream) -> None:
        self.scheduler, self.in_, self.out = in_.scheduler, in_, out
        self._seconds: dict[int, float | None] = {}
        self._closed = False
        process.on_kill.append(self.close)  # as the kernel does

    def settimeout(self, seconds: float | None) -> None:
        pass

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        if option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            whole, millionths = struct.unpack("ll", value)
            self._seconds[option] = whole + 1e-6 * millionths or None

    def _end(self, option: int) -> float | None:
        seconds = self._seconds.get(option)
        return None if seconds is None else self.scheduler.now + seconds

    def sendall(self, data: Any) -> None:
        network, chance = self.in_.network, self.scheduler.random
        weather, end = network.weather, self._end(socket.SO_SNDTIMEO)
        rest = bytes(data)
        fate, cut = chance.random(), chance.randrange(len(rest) + 1)
        while rest:
            self.scheduler.point()
            self._check()
            if fate < weather.broken + weather.silent and len(rest) <= cut:
                self._fail(silent=fate >= weather.broken)
            room = ROOM - self.out.leaving - len(self.out.arrived)
            if room <= 0:
                if not self.out.wait(end):
                    raise BlockingIOError("the other end does not read")
                continue
            size = min(room, chance.randint(1, PIECE), len(rest))
            self.out.put(rest[:size])
            rest = rest[size:]

    def _check(self) -> None:
        if self._closed or self.out.reset or self.in_.reset or self.in_.ended:
            raise ConnectionResetError("the connection is gone")

    def _fail(self, silent: bool) -> None:
        """Lose the connection: with an error for both ends, or so that nothing passes any more and nobody knows."""
        if silent:
            self.in_.mute = self.out.mute = True
        else:
            self.break_off()
            raise ConnectionResetError("broken off")

    def break_off(self) -> None:
        for stream in (self.in_, self.out):
            stream.break_()

    def recv_into(self, into: memoryview, size: int = 0, flags: int = 0) -> int:
        """As with MSG_WAITALL: less than asked for only at the stream's end, or when the time is over."""
        at, end = 0, self._end(socket.SO_RCVTIMEO)
        self.scheduler.point()
        while at < len(into):
            if self.in_.reset or self._closed:
                raise ConnectionResetError("the connection is gone")
            if got := self.in_.arrived[: len(into) - at]:
                into[at : at + len(got)] = got
                del self.in_.arrived[: len(got)]
                at += len(got)
                self.in_.changed()
            elif self.in_.ended:
                break
            elif not self.in_.wait(end):
                if not at:
                    raise BlockingIOError("nothing has come")
                break
        return at

    def readable(self, seconds: float) -> bool:
        end = self.scheduler.now + seconds
        while not (self.in_.arrived or self.in_.ended or self.in_.reset):
            if not self.in_.wait(end):
                return False
        return True

    def shutdown(self, how: int) -> None:
        self.break_off()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.out.put(b"")
            self.in_.changed()


class Listener:
    """A listening socket."""

    def __init__(self, sockets: SimSockets, process: Process, address: Address) -> None:
        self.sockets, self.process, self.address = sockets, process, address
        self._queue: list[SimSocket] = []
        self._waiters: list[Thread] = []

    def getsockname(self) -> Address:
        return self.address

    def fileno(self) -> int:
        return 0

    def accept(self) -> tuple[SimSocket, Address]:
        scheduler = self.sockets.scheduler
        while not self._queue:
            self._waiters.append(scheduler.me)
            scheduler.block()
        return self._queue.pop(0), (HOST, 0)

    def connected(self, sock: SimSocket) -> None:
        """The kernel has completed a connection."""
        self._queue.append(sock)
        waiters, self._waiters = self._waiters, []
        for thread in waiters:
            self.sockets.scheduler.wake(thread)


class SimSockets:
    """All listeners of a simulation, in the place of the kernel's."""

    def __init__(self, scheduler: Scheduler, network: Network) -> None:
        self.scheduler, self.network = scheduler, network
        self._listeners: dict[Address, Listener] = {}
        self._ports = itertools.count(1)

    def create_server(self, address: Address, backlog: int = 0) -> Listener:
        self.scheduler.point()
        mine = (address[0], next(self._ports))
        self._listeners[mine] = Listener(self, self.scheduler.me.process, mine)
        return self._listeners[mine]

    def create_connection(self, address: Address, seconds: float) -> SimSocket:
        me, listener = self.scheduler.me.process, self._listeners[address]
        here, there = (process.name.partition("#")[0] for process in (me, listener.process))
        answered: list[SimSocket | None] = []
        given_up = False

        def arrive() -> None:
            if not listener.process.alive:
                self.network.carry(there, here, partial(answer, None))
                return
            in_, out = Stream(self.network, there, here), Stream(self.network, here, there)
            listener.connected(SimSocket(listener.process, out, in_))
            self.network.carry(there, here, partial(answer, SimSocket(me, in_, out)))

        def answer(sock: SimSocket | None) -> None:
            answered.append(sock)
            if not given_up:
                self.scheduler.wake(thread)
            elif sock is not None:
                sock.close()

        thread = self.scheduler.me
        self.network.carry(here, there, arrive)
        end = self.scheduler.now + seconds
        while not answered:
            if (left := end - self.scheduler.now) <= 0:
                given_up = True
                raise TimeoutError("timed out")
            self.scheduler.block(left)
        if answered[0] is None:
            raise ConnectionRefusedError("nobody listens")
        return answered[0]

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Put these sockets in the place of Python's."""
        before = dict(vars(runtime.sockets))
        try:
            vars(runtime.sockets).update(
                create_connection=self.create_connection,
                create_server=self.create_server,
                readable=SimSocket.readable,
                unsent=lambda sock: sock.out.leaving,
            )
            yield
        finally:
            vars(runtime.sockets).update(before)
