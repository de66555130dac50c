"""Two figures of this machine in about a second, for `easgd doctor`: how fast memory is, and a loopback connection.

They say what to expect of an exchange, which moves 16 bytes of memory a parameter on one machine and 8 bytes a
parameter through a connection. `easgd bench exchange` and `easgd bench wire` measure the exchange itself.
"""

from __future__ import annotations

import socket
import threading
import time

import numpy as np

MEGABYTE = 1_000_000


def memory_bandwidth(megabytes: int = 64, seconds: float = 0.5) -> float:
    """Return the bytes per second that one core reads and writes while it copies a vector larger than the caches."""
    source, target = (np.ones(megabytes * MEGABYTE, np.uint8) for _ in range(2))
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - start)
    # The fastest copy counts: what other processes take from the machine is not its limit.
    return 2 * source.nbytes / min(times)


def loopback_bandwidth(chunk: int = 4 * MEGABYTE, seconds: float = 0.5) -> float:
    """Return the bytes per second of a TCP connection of this machine with itself, in one direction."""
    # The kernel completes a connection before it is accepted, so no second thread is needed for that.
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname(), timeout=10) as sender,
        server.accept()[0] as receiver,
    ):
        start = time.perf_counter()
        writer = threading.Thread(target=_send_until, args=(sender, bytes(chunk), start + seconds), daemon=True)
        writer.start()
        received, into = 0, bytearray(MEGABYTE)
        while count := receiver.recv_into(into):
            received += count
        taken = time.perf_counter() - start
        writer.join()
    return received / taken


def _send_until(sender: socket.socket, data: bytes, end: float) -> None:
    """At least once: on a busy machine the time may be over before this thread has begun."""
    while True:
        sender.sendall(data)
        if time.perf_counter() >= end:
            break
    sender.shutdown(socket.SHUT_WR)
