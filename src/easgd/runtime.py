"""The clock, the threads and the sockets of code that can be simulated.

A module that takes `time`, `threading` and `sockets` from here uses Python's own, at the same cost. The simulation of
the engines (`tests/support/chaos`) puts a virtual clock, threads of one seeded scheduler and a bad network in their
place while it runs; the locks between processes, in `easgd.locks`, too.
"""

from __future__ import annotations

import fcntl as _fcntl
import select as _select
import socket as _socket
import termios as _termios
import threading as _threading
import time as _time
from collections.abc import Callable
from concurrent import futures as _futures
from contextlib import AbstractContextManager
from dataclasses import dataclass


@dataclass
class Clock:
    """What is used of Python's `time`."""

    time: Callable[[], float] = _time.time
    monotonic: Callable[[], float] = _time.monotonic
    monotonic_ns: Callable[[], int] = _time.monotonic_ns
    perf_counter: Callable[[], float] = _time.perf_counter
    thread_time: Callable[[], float] = _time.thread_time
    sleep: Callable[[float], None] = _time.sleep


@dataclass
class Threads:
    """What is used of Python's `threading`, and its pool of threads."""

    Thread: type[_threading.Thread] = _threading.Thread
    RLock: Callable[[], AbstractContextManager[object]] = _threading.RLock
    Condition: type[_threading.Condition] = _threading.Condition
    Event: type[_threading.Event] = _threading.Event
    Semaphore: type[_threading.Semaphore] = _threading.Semaphore
    Timer: type[_threading.Timer] = _threading.Timer
    ThreadPoolExecutor: type[_futures.ThreadPoolExecutor] = _futures.ThreadPoolExecutor


def _readable(sock: _socket.socket, seconds: float) -> bool:
    """Wait until there is something to read; False if the time is over first."""
    poll = _select.poll()
    poll.register(sock, _select.POLLIN)
    return bool(poll.poll(1000 * seconds))


def _unsent(sock: _socket.socket) -> int:
    """Return how many bytes the kernel holds that the other end has not acknowledged."""
    return int.from_bytes(_fcntl.ioctl(sock.fileno(), _termios.TIOCOUTQ, bytes(4)), "little")


@dataclass
class Sockets:
    """What is used of Python's `socket` to make one, and two questions to the kernel about it."""

    create_connection: Callable[[tuple[str, int], float], _socket.socket] = _socket.create_connection
    create_server: Callable[..., _socket.socket] = _socket.create_server
    readable: Callable[[_socket.socket, float], bool] = _readable
    unsent: Callable[[_socket.socket], int] = _unsent


time = Clock()
threading = Threads()
sockets = Sockets()
