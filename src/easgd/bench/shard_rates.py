"""One shard of a cluster's center in a process of its own, and clients that exchange with it as fast as they can.

The shard is the Ray engine's, behind its own sockets; Ray itself is not needed. Clients come to one of its two doors in
turn: the shard, and a plain socket that sends the same bytes back, which is what this machine can do at best.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from typing import Any

import torch
from torch import Tensor

from easgd.bench import in_processes
from easgd.engines.ray.messages import Kind, Reply, Request, Status
from easgd.engines.ray.shard import Shard
from easgd.engines.ray.sockets import SocketLink, SocketServer
from easgd.methods import EASGD

HOST, CENTER, CPU = "127.0.0.1", "center", "cpu"
CHUNK = 64_000_000  # bytes of the plain socket's memory: a center of 4 GB leaves no room for a second one
ROUNDS, SECONDS = 3, 0.3
START_SECONDS = 120.0

Places = tuple[tuple[str, int], bytes, int]  # the shard's address, its secret, the plain socket's port


@dataclass(frozen=True)
class ShardRate:
    """What one shard did for this many clients: exchanges and plain echoes a second, and its own work."""

    parameters: int
    clients: int
    exchanges: float  # per second, of all clients together
    echoes: float  # of the same bytes through a plain socket, per second
    work: float  # seconds of processor time that the shard's process took for one exchange


def measure(parameters: int, clients: int) -> ShardRate:
    """Let clients exchange with a new shard of so many parameters."""
    with _shard_process(parameters) as places:
        results = in_processes(_client, clients, parameters, places)
    together = {name: [sum(each) for each in zip(*(r[name] for r in results), strict=True)] for name in ("ours", "tcp")}
    work = statistics.median(seconds for result in results for seconds in result["work"])
    return ShardRate(parameters, clients, statistics.median(together["ours"]), statistics.median(together["tcp"]), work)


@contextmanager
def _shard_process(parameters: int) -> Iterator[Places]:
    context = multiprocessing.get_context("spawn")
    mine, theirs = context.Pipe()
    process = context.Process(target=_host, args=(parameters, theirs), daemon=True)
    process.start()
    try:
        if not mine.poll(START_SECONDS):
            raise TimeoutError(f"the shard's process has not started within {START_SECONDS:g} s")
        yield mine.recv()
    finally:
        process.terminate()
        process.join()


def _host(parameters: int, pipe: Any) -> None:
    """Serve the shard and the echo until this process is ended."""
    torch.set_num_threads(1)
    shard, secret = Shard(EASGD(moving_rate=0.5), None, {"x": torch.zeros(parameters)}), os.urandom(32)

    def serve(request: Request, message: Tensor | None) -> tuple[Reply, Tensor | None]:
        if request.center == CPU:
            return Reply(Status.DONE, shard.version, waited=time.process_time()), None
        return shard.exchange(request, message)

    server = SocketServer(HOST, secret, serve, {CENTER: 4 * parameters, CPU: 0}.get)
    echo = socket.create_server((HOST, 0), backlog=64)
    pipe.send((server.address, secret, echo.getsockname()[1]))
    while True:
        sock, _ = echo.accept()
        threading.Thread(target=_echo, args=(sock, min(CHUNK, 4 * parameters)), daemon=True).start()


def _echo(sock: socket.socket, chunk: int) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    memory = memoryview(bytearray(chunk))
    while size := int.from_bytes(sock.recv(8, socket.MSG_WAITALL), "little"):
        _fill(sock, memory[:size])
        sock.sendall(memory[:size])


def _fill(sock: socket.socket, memory: memoryview) -> None:
    at = 0
    while at < len(memory):
        at += sock.recv_into(memory[at:], 0, socket.MSG_WAITALL)


def _client(parameters: int, places: Places, rank: int, barrier: Barrier, queue: Any) -> None:
    torch.set_num_threads(1)
    address, secret, port = places
    link, raw = SocketLink(address, secret), socket.create_connection((HOST, port))
    raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # The answer takes the message's memory: halved each time it is exactly 0 soon, and so is the center.
    message = torch.rand(parameters).view(torch.uint8)
    sequence = 0

    def exchange() -> None:
        nonlocal sequence
        link.send(Request(CENTER, rank, 0, sequence, Kind.EXCHANGE, 0.5), message)
        reply, size = link.receive(60.0, message)
        assert (reply.status, size) == (Status.DONE, 4 * parameters)
        sequence += 1

    def echo() -> None:
        memory = message.numpy().data
        for at in range(0, len(memory), CHUNK):
            part = memory[at : at + CHUNK]
            raw.sendall(len(part).to_bytes(8, "little"))
            raw.sendall(part)
            _fill(raw, part)

    def work() -> tuple[float, int]:
        """The processor time of the shard's process so far, and the exchanges that it was for."""
        link.send(Request(CPU, rank, 0, 0, Kind.PULL, 1.0), None)
        reply, _ = link.receive(60.0, message)
        return reply.waited, reply.version

    calls: dict[str, Callable[[], None]] = {"ours": exchange, "tcp": echo}
    rates: dict[str, list[float]] = {**{name: [] for name in calls}, "work": []}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            call()
            barrier.wait()
            start, (seconds, exchanges), count = time.perf_counter(), work(), 0
            while count < 2 or time.perf_counter() - start < SECONDS:
                call()
                count += 1
            rates[name].append(count / (time.perf_counter() - start))
            if name == "ours":
                after, last = work()
                rates["work"].append((after - seconds) / (last - exchanges))
            barrier.wait()
    queue.put(rates)
